"""Devices: profiles and their files, kinds, and the lowering of ops to the kernels that a device may run."""
