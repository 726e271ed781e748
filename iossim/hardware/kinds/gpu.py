"""NVIDIA GPUs, by compute capability and generation."""

from iossim.hardware.compute_capability import LIMITS
from iossim.hardware.kind import shipped_kind

KIND = shipped_kind("gpu", LIMITS)
