"""Picture of docs/results/deploy.md: two streams of the zoo's mixture of experts as predicted, and as ONNX Runtime ran them.

    python -m benchmarks.deployed_streams

draws the run of ``hw_profiles/measurements/epyc-2-cores/moe_layer_streams.csv``, recorded on 2026-11-26, of what
``iossim deploy moe_layer --device examples/cpu.yaml --engine paper --out deployed`` wrote.
"""

from __future__ import annotations

import csv
from collections import defaultdict

import iossim
from benchmarks.kept_runs import ROOT
from iossim.execution.execution import Span
from iossim.report.figures.schedule_timeline import beside_figure
from iossim.report.figures.vega import svg_picture

RECORDED = ROOT / "hw_profiles" / "measurements" / "epyc-2-cores" / "moe_layer_streams.csv"
PICTURE = ROOT / "docs" / "deployed_streams.svg"


def main() -> None:
    runs = defaultdict[str, list[Span]](list)
    with RECORDED.open(encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file):
            times = float(row["start_us"]), float(row["end_us"])
            runs[row["run"]].append(Span(row["node"], row["node"], 0, int(row["stream"]), *times))
    ends_ms = ", ".join(f"{name} {max(span.end_us for span in spans) / 1e3:.1f} ms" for name, spans in runs.items())
    figure = beside_figure(iossim.load("moe_layer"), "moe_layer on two cores by ONNX Runtime", ends_ms, runs)
    PICTURE.write_text(svg_picture(figure, {}, titled=True), encoding="utf-8")


if __name__ == "__main__":
    main()
