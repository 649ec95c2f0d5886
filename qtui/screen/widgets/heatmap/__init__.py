"""A grid of numbers as a picture with axes, a legend and a cursor."""
