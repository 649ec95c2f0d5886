"""The feed-forward part of a layer on the tape: dense, or a mixture of experts."""
