"""What memory and time a run takes on the device that it is on, measured."""
