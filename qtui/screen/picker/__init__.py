"""The picker: one screen to choose a tensor, a scheme, a device, a model, a place by letters."""
