"""The parts of a model on the tape, each in the order of the real forward()."""
