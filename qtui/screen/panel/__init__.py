"""The base classes of panels and views: body, sentence, keys, and requests to the engine."""
