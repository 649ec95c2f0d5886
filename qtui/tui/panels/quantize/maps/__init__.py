"""Pictures of the tensor, and how its values are spread."""
