"""From units to kernels: the kernels that a library would launch for an op."""
