"""A checked-in table of predictions, by which a change of the simulator shows its effects.

Operators as calls and as nodes of a graph, and networks under both engines, one unit after another and by ``ios-both``,
on devices of every generation. ``python -m evidence predictions`` rewrites the table and prints the changes; a test
fails where a row is more than :data:`MOVED` off.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator, Mapping
from pathlib import Path

from iossim.api import optimize
from iossim.base.user_files import write_atomically
from iossim.execution.engine import UNDIVIDED
from iossim.hardware.compute_capability import has_precision
from iossim.hardware.load import device
from iossim.hardware.lowering.kernel import Issue, Libraries
from iossim.hardware.profile import DeviceProfile
from iossim.ir.types import Precision
from iossim.measurements.operator_kinds import read_record
from iossim.models.load import load
from iossim.prediction.predict import predict

TABLE = Path(__file__).parent / "predictions.csv"
#: A row that moves by more than this is printed, and must be rewritten.
MOVED = 0.01
DEVICES = ("p4", "v100-sxm2", "t4", "a100-sxm-40gb", "rtx-3090", "l4", "h100-sxm", "b200")
OPERATORS = (
    "conv batch=1 in_channels=64 out_channels=64 in_size=56 kernel=3 stride=1 padding=1",
    "conv batch=1 in_channels=256 out_channels=1024 in_size=14 kernel=1 stride=1 padding=0",
    "conv batch=32 in_channels=128 out_channels=128 in_size=28 kernel=3 stride=2 padding=1",
    "conv batch=8 in_channels=192 out_channels=192 in_size=28 kernel=5 stride=1 padding=2 groups=192",
    "linear batch=1 m=64 n=1024 k=4096",
    "bmm batch=12 m=128 n=64 k=128",
    "attention batch=1 heads=12 queries=384 keys=384 features=64",
    "relu rows=64 cols=3136",
    "softmax rows=1536 cols=128",
    "layer_norm rows=128 cols=768",
    "max_pool batch=1 channels=64 in_size=112 kernel=3 stride=2 padding=1",
)
NETWORKS = ("ios_sample", "squeezenet", "resnet18")
_CALLED = {Issue.CALLS: Libraries.CURRENT, Issue.GRAPH: Libraries.COMPILED}
_DIGITS = 5

#: Key of a prediction in microseconds.
Row = tuple[str, str, str]
Predictions = dict[Row, float]


def computed() -> Predictions:
    """All rows: ``(device, what, how)`` to microseconds, in order."""
    return {row: us for name in DEVICES for row, us in _of_device(device(name))}


def _of_device(profile: DeviceProfile) -> Iterator[tuple[Row, float]]:
    reduced = Precision.FP16 if has_precision(profile.compute_capability, Precision.FP16) else Precision.FP32
    for issue, libraries in _CALLED.items():
        precision = Precision.FP32 if issue is Issue.CALLS else reduced
        named = [(op, dict(size.split("=") for size in sizes)) for op, *sizes in map(str.split, OPERATORS)]
        operators = [read_record({"op": op, **sizes}, precision) for op, sizes in named]
        for text, found in zip(OPERATORS, predict(operators, profile, libraries, issue), strict=True):
            yield (profile.name, text, f"{issue.value} {precision}"), found.gpu_time_us
    for name in NETWORKS:
        for engine in UNDIVIDED:
            for scheduler in ("sequential", "ios-both"):
                us = optimize(load(name), profile, engine=engine.value, scheduler=scheduler).latency_us
                yield (profile.name, name, f"{engine.value} {scheduler}"), us


def read() -> Predictions:
    """Checked-in rows."""
    with TABLE.open(encoding="utf-8", newline="") as file:
        return {(row["device"], row["what"], row["how"]): float(row["us"]) for row in csv.DictReader(file)}


def write(found: Mapping[Row, float]) -> None:
    """Replace the table."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(("device", "what", "how", "us"))
    writer.writerows((*row, f"{us:.{_DIGITS}g}") for row, us in found.items())
    write_atomically(TABLE, out.getvalue())


def moved(before: Mapping[Row, float], now: Mapping[Row, float]) -> list[str]:
    """One line per row that is new, gone, or more than :data:`MOVED` off."""
    lines = [f"{', '.join(row)}: gone" for row in before if row not in now]
    for row, us in now.items():
        if row not in before:
            lines.append(f"{', '.join(row)}: new, {us:.{_DIGITS}g} us")
        elif abs(us / before[row] - 1) > MOVED:
            lines.append(f"{', '.join(row)}: {before[row]:g} -> {us:.{_DIGITS}g} us ({us / before[row] - 1:+.1%})")
    return lines
