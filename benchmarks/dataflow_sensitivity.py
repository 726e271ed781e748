"""Robustness of conclusions about dataflow when every number of the devices' profiles is up to 20% off.

    python benchmarks/dataflow_sensitivity.py samples.jsonl --samples 200 --seed 0

One line of JSON per sample is written, and an existing file is continued. Sample 0 is the profiles as they ship; in
every other each number of each profile is multiplied by its own factor, uniform in 0.8 to 1.2 and a function of seed
and sample alone: rates, sizes and latencies, and also counts (units, DMA channels: rounded to whole ones) and lines (to
whole words of 4 bytes, since no line holds a part of one). Two tables of Markdown, of one device and of several, tell
the number of samples in which each conclusion holds, by network, and the number of a profile with which its figure
correlates most (Spearman's rank correlation).
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import inf
from operator import itemgetter
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer

from benchmarks import markdown
from iossim.base.errors import DeviceError
from iossim.edge.distributed import distributed
from iossim.edge.optimize import plan
from iossim.edge.plan import Variant
from iossim.edge.simulator.events import simulate
from iossim.hardware.edge import EdgeDevice, edge_device
from iossim.ir.network import Network
from iossim.models.load import load

ALONE = ("mobilenet_v1", "squeezenet_1_0", "shufflenet_v1", "resnet18", "bert_s")
TOGETHER = ("mobilenet_v1", "squeezenet_1_0", "resnet18")
DEVICES, WORD_BYTES = 4, 4
LEAST, MOST = 0.8, 1.2
#: Published reductions of time by horizontal and vertical optimisation, by device.
PUBLISHED = {"c6678": ((0.179, 0.439), (0.303, 0.849)), "zcu102": ((0.804, 0.962), (0.212, 0.833))}

#: Figures of a sample by network: reductions, and speed-ups.
Figures = Mapping[str, float]
app = typer.Typer(add_completion=False)


@dataclass(frozen=True)
class Conclusion:
    """A finding of the shipped profiles, or a published one: a figure is more than ``above`` and less than ``below``."""

    says: str
    figure: Callable[[Figures], float]
    above: float = -inf
    below: float = inf

    def holds(self, figures: Figures) -> bool:
        return self.above < self.figure(figures) < self.below


def over_best_mode(figures: Figures) -> float:
    """Speed-up of the mix over that of the best single mode."""
    return figures["mix"] / max(figures["outC"], figures["inH"], figures["inW"])


ONE_DEVICE = (
    *(
        Conclusion(
            f"{part} takes more off on the {more.upper()} than on the {less.upper()}",
            lambda each, part=part, more=more, less=less: each[f"{more} {part}"] - each[f"{less} {part}"],  # type: ignore[misc]
            above=0,
        )
        for part, more, less in (("horizontal", "zcu102", "c6678"), ("vertical", "c6678", "zcu102"))
    ),
    *(
        Conclusion(
            f"{part} takes off {low:.1%} to {high:.1%} on the {device.upper()}, as published",
            itemgetter(f"{device} {part}"),
            low,
            high,
        )
        for device, ranges in PUBLISHED.items()
        for part, (low, high) in zip(("horizontal", "vertical"), ranges, strict=True)
    ),
)
SEVERAL_DEVICES = (
    Conclusion("ring with the mix is 3.3 to 4.0x as fast as one", itemgetter("mix"), 3.3, 4.0),
    Conclusion("the mix is never worse than a single mode", over_best_mode, above=1 - 1e-12),
    Conclusion("no single mode is as good as the mix", over_best_mode, above=1 + 1e-9),
    Conclusion("the ring is faster than the server", lambda each: each["mix"] / each["server"], above=1),
    Conclusion("the server, all outC, is slower than one device", itemgetter("server outC"), below=1),
)


def factors(device: EdgeDevice, seed: int, sample: int) -> dict[str, float]:
    """Factor of each number of the profile in a sample; 1 in sample 0."""
    rng = random.Random(f"{seed} {sample} {device.name}")
    return {name: rng.uniform(LEAST, MOST) if sample else 1.0 for name in device.numbers()}


def scaled(device: EdgeDevice, by: Mapping[str, float]) -> EdgeDevice:
    """The device with its numbers multiplied; integers stay integers."""
    changes: dict[str, float] = {}
    for name, value in device.numbers().items():
        product = value * by[name]
        if isinstance(value, int):
            unit = WORD_BYTES if name.endswith("line_bytes") else 1
            product = max(unit, unit * round(product / unit)) if value else 0
        changes[name] = product
    changes["unpartitioned_units"] = min(changes["unpartitioned_units"], changes["units"])
    return device.changed(changes)


def reductions(network: Network, device: EdgeDevice) -> tuple[float, float]:
    """Reduction by horizontal, and that of the rest by vertical optimisation."""
    times_us = [simulate(plan(network, device, variant)).total_us for variant in Variant]
    return 1 - times_us[1] / times_us[0], 1 - times_us[2] / times_us[1]


def speedups(network: Network, device: EdgeDevice) -> dict[str, float]:
    ring = distributed(network, device, DEVICES, "srio", "ring")
    server = distributed(network, device, DEVICES, "srio", "server")
    return {
        "mix": ring.speedup,
        **{mode: ring.one_us / us for mode, us in ring.by_mode_us.items()},
        "server": server.speedup,
        "server outC": server.one_us / server.by_mode_us["outC"],
    }


def sampled(alone: Mapping[str, Network], together: Mapping[str, Network], seed: int, sample: int) -> dict[str, Any]:
    """A sample: its factors, and the figures of each network; a network that no longer fits has the reason instead."""
    by = {name: factors(edge_device(name), seed, sample) for name in PUBLISHED}
    devices = {name: scaled(edge_device(name), by[name]) for name in PUBLISHED}
    told: dict[str, dict[str, Any]] = {"alone": {}, "together": {}}
    for model, network in alone.items():
        try:
            own = {name: reductions(network, device) for name, device in devices.items()}
            told["alone"][model] = {
                f"{name} {part}": value
                for name, both in own.items()
                for part, value in zip(("horizontal", "vertical"), both, strict=True)
            }
        except DeviceError as error:
            told["alone"][model] = {"fails": str(error)}
    for model, network in together.items():
        try:
            told["together"][model] = speedups(network, devices["c6678"])
        except DeviceError as error:
            told["together"][model] = {"fails": str(error)}
    return {"seed": seed, "sample": sample, "factors": by, **told}


def loaded(names: str) -> dict[str, Network]:
    return {name: load(name) for name in names.split(",") if name}


@app.command()
def sensitivity(
    file: Path,
    samples: int = 200,
    seed: int = 0,
    alone: Annotated[str, typer.Option(help="Networks on one device, separated by commas.")] = ",".join(ALONE),
    together: Annotated[str, typer.Option(help="Networks on four C6678.")] = ",".join(TOGETHER),
) -> None:
    """Draw and time the samples that the file lacks, and print the tables of all that it has."""
    done = {each["sample"] for each in read(file)} if file.exists() else set()
    one, several = loaded(alone), loaded(together)
    with file.open("a", encoding="utf-8") as out:
        for sample in sorted({*range(samples + 1)} - done):
            out.write(json.dumps(sampled(one, several, seed, sample)) + "\n")
            out.flush()
            typer.echo(f"\r{sample} of {samples} samples", err=True, nl=False)
    typer.echo(err=True)
    found = read(file)
    counted = f"of {len(found) - 1} samples"
    for part, title, conclusions in (
        ("alone", counted, ONE_DEVICE),
        ("together", f"four C6678, {counted}", SEVERAL_DEVICES),
    ):
        models = list(found[0][part])
        markdown.head(title, *models, "follows most")
        for each in conclusions:
            cells = (cell(each, found, part, model) for model in models)
            markdown.row(each.says, *cells, strongest(each, found, part))
        print()


def cell(conclusion: Conclusion, found: Sequence[Mapping[str, Any]], part: str, model: str) -> str:
    """Number of the samples in which it holds; in brackets if it fails for the shipped profiles."""
    first, *drawn = (each[part][model] for each in found)
    count = sum("fails" not in each and conclusion.holds(each) for each in drawn)
    return f"{count}" if "fails" not in first and conclusion.holds(first) else f"({count})"


def strongest(conclusion: Conclusion, found: Sequence[Mapping[str, Any]], part: str) -> str:
    """Number of a profile whose rank correlation with the figure is largest, averaged over networks."""
    models = list(found[0][part])
    drawn = [each for each in found[1:] if not any("fails" in each[part][model] for model in models)]
    if len(drawn) < 3:
        return ""
    columns = {
        f"{device} {name}": [each["factors"][device][name] for each in drawn]
        for device, names in drawn[0]["factors"].items()
        for name in names
    }
    ranked = np.array([ranks(values) for values in columns.values()])
    total = np.zeros(len(columns))
    for model in models:
        figure = ranks([conclusion.figure(each[part][model]) for each in drawn])
        if figure.std():
            total += (ranked @ figure) / (len(drawn) * ranked.std(axis=1) * figure.std())
    best = int(np.argmax(np.abs(total)))
    mean = total[best] / len(models)
    return f"{list(columns)[best]} ({mean:+.2f})" if abs(mean) >= 0.2 else ""


def ranks(values: Sequence[float]) -> np.ndarray[Any, np.dtype[np.float64]]:
    """Ranks about their mean; ties share theirs."""
    _, places, counts = np.unique(np.round(values, 12), return_inverse=True, return_counts=True)
    ends = np.cumsum(counts)
    middle = ends - (counts - 1) / 2
    return np.asarray(middle[places] - middle[places].mean(), dtype=np.float64)


def read(file: Path) -> list[dict[str, Any]]:
    """Samples of a file in order."""
    lines = file.read_text(encoding="utf-8").splitlines()
    return sorted((json.loads(line) for line in lines), key=lambda each: each["sample"])


if __name__ == "__main__":
    app()
