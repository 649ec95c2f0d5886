"""The parts that panels share: requests, views, lists, tables, charts, keys."""
