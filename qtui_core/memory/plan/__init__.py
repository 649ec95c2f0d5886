"""A plan says how a model is run: its options, their texts, and which of them contradict each
other."""
