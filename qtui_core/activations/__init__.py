"""What flows through a model: inputs and outputs of its layers on real text, and their ranges."""
