"""Pictures of memory over the events of a step."""
