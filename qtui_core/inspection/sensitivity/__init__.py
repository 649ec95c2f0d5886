"""Which scheme for which tensor, so that the bytes fit and the error is least."""
