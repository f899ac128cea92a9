"""What work costs in seconds: kernels, messages, host."""
