"""CPUs: a core corresponds to an SM that holds one block of one warp, as an op runs on one thread."""

from iossim.hardware.compute_capability import WARP_THREADS, MultiprocessorLimits
from iossim.hardware.kind import shipped_kind

KIND = shipped_kind("cpu", {"": MultiprocessorLimits("cpu", WARP_THREADS, 1, 1, 0, 0, 0, 1)})
