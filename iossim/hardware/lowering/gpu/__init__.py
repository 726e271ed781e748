"""GPUs: which kernels cuDNN, cuBLAS or the engine launch for a step, with their grids, resources and traffic."""

import iossim.hardware.lowering.gpu.families  # noqa: F401  (importing it registers every family)
from iossim.hardware.lowering.gpu.cudnn_algorithms import forward, of_data, of_filter
from iossim.hardware.lowering.gpu.families.streaming import copy_candidate
from iossim.hardware.lowering.gpu.registry import FAMILIES
from iossim.hardware.lowering.target import Target

_ALGORITHMS = {"conv": forward, "conv_backward_data": of_data, "conv_backward_filter": of_filter}
TARGET = Target(FAMILIES, copy_candidate, _ALGORITHMS)
