"""Records of a GPU collection: ``kernels.jsonl``, ``pairs.jsonl`` or ``stages.jsonl`` beside ``ops.jsonl`` and
``device.json``.

Every line is a JSON object with ``id`` and ``t_s``. ``ops.jsonl`` describes each operator id: a convolution with its
activation, a chain of them, a pooling, a matrix product, a sum or concatenation of slices of its sources. Times are
those of replayed CUDA graphs, per copy: they exclude host overhead and include gaps.

An id of a single operator is a measurement. One of several steps is a stage of one group; a pair or a stage has one
group per stream, and its time includes the fork and the join. Fused calls (``impl`` fused) run a convolution with its
activation at once; ``bias`` ones, which add their bias in a separate kernel, are left out.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from math import prod
from pathlib import Path
from typing import Any

from iossim.hardware.lowering.kernel import Issue
from iossim.ir.types import Precision
from iossim.measurements.formats import Format
from iossim.measurements.kinds import RecordError
from iossim.measurements.measurement import (
    Extent,
    Header,
    Measurement,
    MeasurementSet,
    Operator,
    StageMeasurement,
    device_of,
    device_of_product,
)
from iossim.measurements.operator_kinds import read_record
from iossim.measurements.text_files import NumberedRow, RowError, Sieve, number, read_file

_FILES = ("kernels.jsonl", "pairs.jsonl", "stages.jsonl")
_POOLS = {"max": "max_pool", "avg": "average_pool", "global_avg": "global_average_pool"}
#: Records that are no measurements: the number of remaining ones, and the kernels that an item launches.
_NO_MEASUREMENT = ("left:", "trace:")

Found = Measurement | StageMeasurement


def _recognises(path: Path, head: str) -> bool:
    first = head.lstrip().partition("\n")[0]
    return path.name in _FILES and first.startswith("{") and '"id":' in first and '"t_s":' in first


def _read(path: Path, device: str | None) -> MeasurementSet:
    sieve = Sieve(path)
    rows = list(_records(path, sieve))
    specs = {
        str(row.cells["op"]): row.cells["spec"]
        for row in _records(path.with_name("ops.jsonl"), Sieve(path))
        if "spec" in row.cells
    }
    launched = {
        str(row.cells["item"]): row.cells.get("kernels")
        for row in rows
        if str(row.cells.get("id")).startswith("trace:")
    }
    left_out: Counter[str] = Counter()
    usable = []
    for row in rows:
        reason = _unusable(row.cells)
        if reason:
            left_out[reason] += 1
        elif not str(row.cells.get("id")).startswith(_NO_MEASUREMENT):
            usable.append(row)
    reader = _Reader(specs, launched)
    found = [each for several in sieve.keep(usable, reader.read) for each in several]
    notes = (*sieve.notes(), *(f"{count:,} records left out: {reason}" for reason, count in left_out.items()))
    return MeasurementSet(
        _header(path, device),
        tuple(each for each in found if isinstance(each, Measurement)),
        tuple(each for each in found if isinstance(each, StageMeasurement)),
        notes,
    )


def _records(path: Path, sieve: Sieve) -> Iterator[NumberedRow]:
    """Objects of a file; an incomplete line was being written when the collection was interrupted."""
    for index, line in enumerate(read_file(path).splitlines()):
        try:
            record = json.loads(line) if line.strip() else {}
        except (ValueError, RecursionError):
            record = None
        if not isinstance(record, dict):
            sieve.total += 1
            sieve.drop(index + 1, "the line is not a JSON object")
        elif record:
            yield NumberedRow(index + 1, record)


def _unusable(record: Mapping[str, Any]) -> str:
    """Reason why a record has no usable time, or an empty string."""
    if "error" in record:
        return "the operator failed"
    if any(timing.get("host_bound") is True for timing in (record, *_timings(record))):
        return "the host was slower than the device"
    return "bias and activation ran as kernels of their own" if record.get("impl") == "bias" else ""


def _timings(record: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    for name in ("concurrent", "serial", "merged"):
        if isinstance(record.get(name), dict):
            yield record[name]


def _header(path: Path, device: str | None) -> Header:
    facts: dict[str, Any] = {}
    described = path.with_name("device.json")
    if described.is_file():
        records = (row.cells for row in _records(described, Sieve(described)))
        facts = next((dict(record) for record in records if record.get("id") == "facts"), {})
    versions = facts.get("versions", {})
    product = facts.get("device", {}).get("properties", {}).get("name")
    return Header(
        device=device_of(path, device_of_product(product) if isinstance(product, str) else None, device),
        data_set=f"{path.absolute().parent.name}/{path.name}",
        libraries={
            name: str(versions[key])
            for name, key in (("pytorch", "torch"), ("cuda", "cuda"), ("cudnn", "cudnn"))
            if versions.get(key)
        },
        issue=Issue.GRAPH,
        source="GPU collection, replayed CUDA graphs",
    )


class _Reader:
    """Makes measurements of records."""

    def __init__(self, specs: Mapping[str, Any], launched: Mapping[str, Any]) -> None:
        self._specs = specs
        self._launched = launched

    def read(self, record: Mapping[str, Any]) -> list[Found]:
        """Convert a record; raises RowError or RecordError."""
        try:
            if "concurrent" in record:
                return self._concurrent(record)
            precision = Precision(record["dtype"])
            operators = self._operators(record["op"], record["batch"], precision, record["impl"])
            return self._alone(operators, record, record) if operators else []
        except (KeyError, IndexError, TypeError, ValueError, AttributeError) as error:
            if isinstance(error, RowError | RecordError):
                raise
            raise RowError("the record has not the fields of its kind") from None

    def _operators(self, key: str, batch: int, precision: Precision, impl: str) -> list[Operator]:
        if key not in self._specs:
            raise RowError(f"operator {key} is not in ops.jsonl")
        return list(operators_of(self._specs[key], batch, precision, impl))

    def _alone(
        self, operators: Sequence[Operator], timing: Mapping[str, Any], record: Mapping[str, Any]
    ) -> list[Found]:
        latency_us, spread_us, samples = _timed(timing)
        if len(operators) > 1:
            return [StageMeasurement((tuple(operators),), latency_us, None, spread_us, samples)]
        kernels = self._launched.get(record["id"]) or ()
        main: Mapping[str, Any] = max(kernels, key=lambda kernel: kernel["us"], default={})
        return [
            Measurement(
                operators[0],
                latency_us,
                spread_us=spread_us,
                samples=samples,
                kernels=tuple(kernel["name"] for kernel in kernels),
                grid=Extent(*main["grid"]) if main.get("grid") else None,
                block=Extent(*main["block"]) if main.get("block") else None,
                is_cold=record.get("cold") is True,
            )
        ]

    def _concurrent(self, record: Mapping[str, Any]) -> list[Found]:
        """A pair or a stage, at batch 1 in fp32; for merged convolutions, the stacked one too."""
        if "groups" in record:
            impls = record["impl"]
            named = [
                [(key, impls[name]) for key, name in zip(keys, names, strict=True)]
                for keys, names in zip(record["ops"], record["groups"], strict=True)
            ]
        else:
            named = [[each] for each in zip(record["ops"], record["impl"], strict=True)]
        groups = [
            tuple(operator for key, impl in group for operator in self._operators(key, 1, Precision.FP32, impl))
            for group in named
        ]
        found: list[Found] = []
        if any(groups):
            latency_us, spread_us, samples = _timed(record["concurrent"])
            serial_us = number(record["serial"], "us") if "serial" in record else None
            used = tuple(group for group in groups if group)
            found.append(StageMeasurement(used, latency_us, None, spread_us, samples, serial_us))
        if "merged" in record:
            merged = self._operators(record["merged_op"], 1, Precision.FP32, named[0][0][1])
            found += self._alone(merged, record["merged"], {"id": None})
        return found


def _timed(timing: Mapping[str, Any]) -> tuple[float, float, int]:
    """Median, spread (90th less 10th percentile) and replays."""
    spread_us = max(0.0, float(timing["p90_us"]) - float(timing["p10_us"]))
    return number(timing, "us"), spread_us, int(timing["replays"])


def operators_of(spec: Mapping[str, Any], batch: int, precision: Precision, impl: str) -> Iterator[Operator]:
    """Operators that an operator of a collection launches, in order; none for one that only passes its input on."""
    if spec["type"] == "matmul":
        sizes = {name: spec[name] for name in "mnk"}
        yield read_record({"op": "gemm", **sizes, "trans_a": "N", "trans_b": "N"}, precision)
        return

    def plane(op: str, shape: Sequence[int]) -> Operator:
        return read_record({"op": op, "rows": batch * shape[0], "cols": prod(shape[1:])}, precision)

    image = spec["sources"][0][1:]
    widths = [term[0][2] - term[0][1] for term in spec["inputs"]]
    for term, width in zip(spec["inputs"], widths, strict=True):
        # A sum of several is a chain of sums of two.
        for _ in term[1:]:
            yield plane("add", [width, *image])
    shape = [sum(widths), *image]
    if len(widths) > 1:
        yield plane("concat", shape)
    for node in spec["nodes"] if spec["type"] == "sequential" else [spec]:
        if node["type"] == "relu":
            yield plane("relu", shape)
        elif node["type"] in ("conv", "pool"):
            yield _windowed(node, batch, shape, precision)
            if node.get("act") == "relu" and impl != "fused":
                yield plane("relu", node["output_shape"])
        elif node["type"] != "identity":
            raise RowError(f"operator type {node['type']!r} is unknown")
        shape = node["output_shape"]


def _windowed(node: Mapping[str, Any], batch: int, shape: Sequence[int], precision: Precision) -> Operator:
    record: dict[str, Any] = {"batch": batch, "in_h": shape[1], "in_w": shape[2]}
    if node["type"] == "conv":
        record |= {"op": "conv", "in_channels": shape[0], "out_channels": node["out_channels"]}
        record["groups"] = node["groups"]
    else:
        record |= {"op": _POOLS[node["pool_type"]], "channels": shape[0]}
    if record["op"] != "global_average_pool":
        for ours, theirs in (("kernel", "kernel"), ("stride", "stride"), ("pad", "padding")):
            record |= {f"{ours}_h": node[theirs][0], f"{ours}_w": node[theirs][1]}
    return read_record(record, precision)


FORMAT = Format("records of a GPU collection beside their ops.jsonl", _recognises, _read)
