"""The simulator: prices kernels from a device's datasheet and model parameters, stages from their kernels."""
