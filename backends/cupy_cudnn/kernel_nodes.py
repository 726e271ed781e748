"""Shares of the device that the kernels of a captured graph hold: the driver knows them, and no library tells its own.

Source: ``cuda.h`` of CUDA 13.0, sections "Graph Management" and "Occupancy" (``CUDA_KERNEL_NODE_PARAMS_v2``).
"""

from __future__ import annotations

import ctypes
from typing import Any

_KERNEL_NODE = 0


class KernelNode(ctypes.Structure):
    """``CUDA_KERNEL_NODE_PARAMS_v2``; the function is null where the node has a kernel of a library."""

    _fields_ = (
        ("function", ctypes.c_void_p),
        ("grid", ctypes.c_uint * 3),
        ("block", ctypes.c_uint * 3),
        ("shared_bytes", ctypes.c_uint),
        ("arguments", ctypes.c_void_p),
        ("extra", ctypes.c_void_p),
        ("kernel", ctypes.c_void_p),
        ("context", ctypes.c_void_p),
    )


def held(library: Any, graph: int) -> tuple[int, float]:
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


def _of_node(library: Any, node: ctypes.c_void_p) -> tuple[int, float]:
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
