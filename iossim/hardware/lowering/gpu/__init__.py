"""GPUs: which kernels cuDNN, cuBLAS or the engine launch for a step, with their grids, resources and traffic."""

from iossim.base.registry import Places
from iossim.hardware.lowering.gpu.families import FAMILIES
from iossim.hardware.lowering.gpu.families.streaming import copy_candidate
from iossim.hardware.lowering.target import Sort, Target

_ALGORITHMS = Places[Sort](
    "iossim.hardware.lowering.gpu",
    {
        "cudnn_algorithms:forward": "conv",
        "cudnn_algorithms:of_data": "conv_backward_data",
        "cudnn_algorithms:of_filter": "conv_backward_filter",
    },
)
TARGET = Target(FAMILIES, copy_candidate, _ALGORITHMS)
