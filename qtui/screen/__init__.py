"""The parts of panels: the life of a question, views, lists, tables, charts, keys."""
