"""What is asked of a run: its options, which of them contradict each other, and their texts."""
