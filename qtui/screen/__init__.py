"""What panels are made of: the life of a question, views, lists, tables, charts, keys."""
