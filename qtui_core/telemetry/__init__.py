"""What drivers and the operating system report of the GPUs and the machine."""
