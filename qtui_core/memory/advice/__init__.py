"""What to change in a plan: what fits, what each change saves, and worked cases from documents."""
