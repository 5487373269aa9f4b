"""What is checked and measured when a new kind of device is at hand."""
