"""What runs kernels: the protocol of a device, and the CPU."""
