"""What to change: what fits, what each change saves, and worked cases from documents."""
