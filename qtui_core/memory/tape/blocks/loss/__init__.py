"""The loss of a language model on the tape, whole or in parts."""
