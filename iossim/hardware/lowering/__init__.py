"""From units to kernels: which kernels a GPU library would launch for an op, with their grids, resources and traffic."""
