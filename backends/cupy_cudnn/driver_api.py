"""Calls of the driver's own interface that CuPy lacks, by ctypes: streams that have some SMs of a device to themselves,
and what part of the device the kernels of a graph hold.

Source: ``cuda.h`` of CUDA 13.0, sections "Green Contexts" (in drivers since CUDA 12.4; streams of them since 12.5),
"Graph Management" and "Occupancy". A part is split off the SMs that those before it left, and the last one takes all
that is left, so that parts of one division are disjoint. Which SMs a part gets the driver decides: only their number
is asked for.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence

from iossim.execution.backend import BackendError

#: ``CU_DEV_RESOURCE_TYPE_SM``, ``CU_GREEN_CTX_DEFAULT_STREAM`` and ``CU_STREAM_NON_BLOCKING``.
_SM, _DEFAULT_STREAM, _NON_BLOCKING = 1, 1, 1
_CALLS = (
    "cuDeviceGetDevResource", "cuDevSmResourceSplitByCount", "cuDevResourceGenerateDesc", "cuGreenCtxCreate",
    "cuGreenCtxStreamCreate",
)  # fmt: skip
_REMEDY = "give `engine` graph"
_KERNEL_NODE = 0


class DevResource(ctypes.Structure):
    """``CUdevResource`` of SMs: a type, 92 bytes of the driver's own, a union of 48 that begins with their count."""

    _fields_ = (
        ("type", ctypes.c_uint),
        ("internal", ctypes.c_ubyte * 92),
        ("sm_count", ctypes.c_uint),
        ("rest", ctypes.c_ubyte * 44),
    )


class GreenContexts:
    """The contexts of one device, made when a stream of theirs is first asked for, and kept.

    ``library`` is the driver's, loaded by ctypes. Raises BackendError where it has no green contexts.
    """

    def __init__(self, library: ctypes.CDLL, device: int = 0) -> None:
        self._library, self._device = library, device
        lacking = next((name for name in _CALLS if not hasattr(library, name)), None)
        if lacking is not None:
            raise BackendError(
                f"`engine` partition needs green contexts, and this driver has no {lacking}; install one of CUDA 12.5 "
                f"or newer, or {_REMEDY}"
            )
        self._contexts: dict[tuple[range, ...], list[ctypes.c_void_p]] = {}

    def stream(self, division: tuple[range, ...], part: int) -> int:
        """A new stream, as the driver's handle, of a part of a division: ranges of SMs, rising and disjoint."""
        if division not in self._contexts:
            self._contexts[division] = self._divided(division)
        stream = ctypes.c_void_p()
        context = self._contexts[division][part]
        self._call("cuGreenCtxStreamCreate", ctypes.byref(stream), context, _NON_BLOCKING, 0)
        return int(stream.value or 0)

    def _divided(self, division: Sequence[range]) -> list[ctypes.c_void_p]:
        left = DevResource()
        self._call("cuDeviceGetDevResource", self._device, ctypes.byref(left), _SM)
        if division[-1].stop > left.sm_count:
            raise BackendError(
                f"the plan divides {division[-1].stop} SMs and this GPU has {left.sm_count}; plan for its own profile"
            )
        whole, contexts, begin = left.sm_count, [], 0
        for sms in division:
            if sms.start > begin:  # what no part of the division has
                _, left = self._split(left, sms.start - begin)
            own, left = (left, left) if sms.stop == whole else self._split(left, len(sms))
            contexts.append(self._context(own))
            begin = sms.stop
        return contexts

    def _split(self, whole: DevResource, count: int) -> tuple[DevResource, DevResource]:
        """So many SMs, and those that are left."""
        own, left, groups = DevResource(), DevResource(), ctypes.c_uint(1)
        self._call("cuDevSmResourceSplitByCount", *map(ctypes.byref, (own, groups, whole, left)), 0, count)
        if (groups.value, own.sm_count) != (1, count):
            raise BackendError(
                f"the driver gives a green context {own.sm_count} SMs where the plan has {count}; plan for this GPU's "
                f"own profile, or {_REMEDY}"
            )
        return own, left

    def _context(self, resource: DevResource) -> ctypes.c_void_p:
        described, context = ctypes.c_void_p(), ctypes.c_void_p()
        self._call("cuDevResourceGenerateDesc", ctypes.byref(described), ctypes.byref(resource), 1)
        self._call("cuGreenCtxCreate", ctypes.byref(context), described, self._device, _DEFAULT_STREAM)
        return context

    def _call(self, name: str, *arguments: object) -> None:
        error = getattr(self._library, name)(*arguments)
        if error:
            raise BackendError(f"the driver divides no SMs ({name} says error {error}); {_REMEDY}")


def driver_library() -> ctypes.CDLL:
    """The driver's library, as it is installed with it; raises BackendError where there is none."""
    try:
        return ctypes.CDLL("libcuda.so.1")
    except OSError as error:
        raise BackendError(f"`engine` partition needs the driver's library ({error}); {_REMEDY}") from None


class KernelNode(ctypes.Structure):
    """``CUDA_KERNEL_NODE_PARAMS_v2``; the function is null where the node has a kernel of a library."""

    _fields_ = (
        ("function", ctypes.c_void_p),
        ("grid", ctypes.c_uint * 3),
        ("block", ctypes.c_uint * 3),
        ("shared_bytes", ctypes.c_uint),
        *((name, ctypes.c_void_p) for name in ("arguments", "extra", "kernel", "context")),
    )


def held(library: ctypes.CDLL, graph: int) -> tuple[int, float]:
    """Blocks of the kernel whose blocks hold most of an SM, and that part; zeros where the driver does not tell.

    ``library`` is the driver's, loaded by ctypes, and ``graph`` its handle of the graph.
    """
    count = ctypes.c_size_t()
    if library.cuGraphGetNodes(ctypes.c_void_p(graph), None, ctypes.byref(count)):
        return 0, 0.0
    nodes = (ctypes.c_void_p * count.value)()
    if library.cuGraphGetNodes(ctypes.c_void_p(graph), nodes, ctypes.byref(count)):
        return 0, 0.0
    found = [_of_node(library, ctypes.c_void_p(node)) for node in nodes]
    return max(found, key=lambda one: (one[1], one[0]), default=(0, 0.0))


def _of_node(library: ctypes.CDLL, node: ctypes.c_void_p) -> tuple[int, float]:
    kind, made, resident = ctypes.c_int(-1), KernelNode(), ctypes.c_int()
    if library.cuGraphNodeGetType(node, ctypes.byref(kind)) or kind.value != _KERNEL_NODE:
        return 0, 0.0
    if library.cuGraphKernelNodeGetParams_v2(node, ctypes.byref(made)):
        return 0, 0.0
    function = ctypes.c_void_p(made.function)
    if not made.function and library.cuKernelGetFunction(ctypes.byref(function), ctypes.c_void_p(made.kernel)):
        return 0, 0.0
    threads, shared_bytes = made.block[0] * made.block[1] * made.block[2], ctypes.c_size_t(made.shared_bytes)
    asked = ctypes.byref(resident), function, threads, shared_bytes
    if library.cuOccupancyMaxActiveBlocksPerMultiprocessor(*asked) or resident.value < 1:
        return 0, 0.0
    return made.grid[0] * made.grid[1] * made.grid[2], 1.0 / resident.value
