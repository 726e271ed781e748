"""Benchmarks of a kernel on a device: each algorithm of its library timed at each batch size, once for all in the store."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from iossim.base.errors import OptionError
from iossim.cost.measured.cost_model import MeasuredCostModel
from iossim.cost.measured.record import Kind, MeasurementRecord
from iossim.execution.backend import Samples, TimesAlgorithms
from iossim.ir.builder import GraphBuilder
from iossim.ir.network import Network
from iossim.ir.ops.conv import Conv
from iossim.transforms.microbatching.configuration import BenchmarkRow
from iossim.transforms.microbatching.conv_kernel import ConvKernel

_UNIT = "kernel"


def measured_rows(kernel: ConvKernel, batches: Sequence[int], model: MeasuredCostModel) -> tuple[BenchmarkRow, ...]:
    """Rows of all algorithms that the backend offers, batch by batch; raises OptionError where it cannot tell them apart."""
    return tuple(row for batch in batches for row in _rows(kernel.of_batch(batch), model))


def _rows(kernel: ConvKernel, model: MeasuredCostModel) -> list[BenchmarkRow]:
    backend = model.backend
    if not isinstance(backend, TimesAlgorithms):
        raise OptionError(
            f"`cost_model` {model.context.backend} does not time the algorithms of a convolution one by one; use the "
            "simulator or cupy_cudnn, or give a table"
        )
    network = _network(kernel)
    # No signature of a stage: whoever looks those up finds no algorithms.
    signature = f"algorithms of {network.signatures[0]}"
    records = [] if model.again else model.store.of_kind(model.context, Kind.ALGORITHM)
    # Of all that were measured of one kernel together the newest count.
    kept = [record for record in records if record.signature == signature]
    kept = [record for record in kept if record.date == kept[-1].date]
    if not kept:
        found = backend.algorithms(network, _UNIT)
        kept = [
            MeasurementRecord(
                model.context,
                Kind.ALGORITHM,
                signature,
                1,
                0,
                Samples((one.time_us,)),
                one.algorithm,
                subject={"words": f"{kernel.op.kind}, batch {kernel.batch}", "workspace_bytes": one.workspace_bytes},
            )
            for one in found
        ]
        kept = [replace(record, date=kept[0].date) for record in kept]
        model.store.add(kept)
    return [
        BenchmarkRow(kernel.batch, record.algorithm, record.samples.median_us, int(record.subject["workspace_bytes"]))
        for record in kept
    ]


def _network(kernel: ConvKernel) -> Network:
    """The kernel alone, without a bias; raises OptionError for a gradient, which no backend offers algorithms of."""
    op = kernel.op
    if not isinstance(op, Conv):
        raise OptionError("algorithms of gradients are not measured; use the simulator, or give a table")
    x, weight = kernel.inputs
    builder = GraphBuilder("kernel", kernel.precision)
    value = builder.input("x", x.shape)
    with builder.unit(_UNIT, "Conv"):
        value = builder.add(op, value, builder.constant("w", weight.shape), name=_UNIT)
    return builder.network([value])
