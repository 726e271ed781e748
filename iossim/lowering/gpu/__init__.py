"""GPUs: which kernels cuDNN, cuBLAS or the engine launch for a step, with their grids, resources and traffic."""

import iossim.lowering.gpu.families  # noqa: F401  (importing it registers every family)
from iossim.lowering.gpu.families.streaming import copy_candidate
from iossim.lowering.gpu.registry import FAMILIES
from iossim.lowering.target import Target

TARGET = Target(FAMILIES, copy_candidate)
