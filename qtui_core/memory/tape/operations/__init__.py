"""Operations of torch as the tape knows them: what each allocates, saves, and gives back."""
