"""Ops that neither a library nor a kernel of ours computes: NumPy computes them on the host, inside the run.

The host waits for the device, copies the operands of such an op to the host and its results back. A capture allows no
such wait, so the graphs of a run end before the op and begin again after it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from iossim.backends.cupy_cudnn.driver import Driver
from iossim.backends.cupy_cudnn.views import View
from iossim.ir.graph import Node
from iossim.ir.op import Array, Op


@dataclass(frozen=True, eq=False)
class HostCall:
    """An op from and to dense views; what it reads of constants is named instead. ``reason``: why it runs there."""

    node: Node
    reason: str
    reads: tuple[View | str, ...]
    writes: tuple[View, ...]

    @property
    def kind(self) -> str:
        return kind_of(self.node.op)

    def run(self, driver: Driver, load: Callable[[str], Array], address: Callable[[View], int]) -> None:
        """Compute it after all that was issued; returns when its results are on the device."""
        arrays = []
        for read in self.reads:
            arrays.append(load(read) if isinstance(read, str) else np.empty(read.shape, read.dtype.numpy))
            if isinstance(read, View):
                driver.read(address(read), arrays[-1])
        for view, array in zip(self.writes, self.node.op.evaluate(arrays), strict=True):
            driver.write(address(view), np.ascontiguousarray(array, view.dtype.numpy))


def remarks(calls: Sequence[HostCall], network: str) -> Iterator[str]:
    """Remarks on the ops of a network that run on the host: a line for each kind and reason."""
    causes: dict[tuple[str, str], list[str]] = {}
    for call in calls:
        causes.setdefault((call.kind, call.reason), []).append(repr(call.node.name))
    for (kind, reason), ops in causes.items():
        named = ", ".join(ops[:3]) + (f" and {len(ops) - 3} more" if len(ops) > 3 else "")
        yield f"{kind} of {network!r} (op {named}) runs on the host, by NumPy, and the GPU waits: {reason}"


def kind_of(op: Op) -> str:
    """Its function, where the kind has several; ONNX's name of one that iossim has no class of its own for."""
    return str(getattr(op, "op_type", getattr(op, "function", op.kind)))
