"""``iossim profile``: measure a network's units, pairs and stages on a backend, and store the measurements."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from iossim.base.display import counted
from iossim.cli.options import ModelOptions, TimingOptions, command
from iossim.cli.outputs import Part, notes, present, table, wrapped
from iossim.cli.progress import progress_bars

if TYPE_CHECKING:
    from iossim.cost.measured.profiling import Profile
    from iossim.execution.backend import Context


#: Most noisy measurements that are named.
_NAMED = 3


@command
def profile(
    model: str,
    backend: str,
    reading: ModelOptions,
    store: Path | None = None,
    pairs: int = 40,
    stages: int = 40,
    engine: str = "auto",
    max_group_size: int | None = 3,
    max_groups: int | None = 8,
    *,
    timed: TimingOptions,
    again: bool = False,
    as_json: bool = False,
) -> None:
    """Measure each unit of MODEL, pairs and stages, except stored ones: an interrupted profile resumes."""
    from iossim.cost.measured.cost_model import MeasuredCostModel
    from iossim.cost.measured.profiling import ProfileOptions, profile_parts
    from iossim.cost.measured.profiling import profile as measure
    from iossim.cost.measured.store import MeasurementStore
    from iossim.execution.backend import backend_from
    from iossim.hardware.host_measuring import ensure_host_cpu
    from iossim.models.passes.blocks import narrow_blocks

    sampled = ProfileOptions(pairs, stages, timed.seed, max_group_size, max_groups)
    timing = timed.timing()
    network = narrow_blocks(reading.network(model))
    runner = backend_from(backend, network.precision, engine)
    ensure_host_cpu(runner.context.device)  # calibrate needs this CPU's profile
    with MeasurementStore(store) as kept:
        prices = MeasuredCostModel(runner, kept, timing, again=again)
        parts = profile_parts(network, prices, sampled)
        batches = [batch for part in parts for batch in part.batches]
        missing = prices.recall(*batches)
        stored = counted(sum(map(len, batches)) - missing, "stage")
        typer.echo(f"{counted(missing, 'stage')} to measure; {stored} in {kept.path} already", err=True)
        with progress_bars(quiet=as_json, unit="stages", tells_rest=True) as start:
            found = measure(network, prices, parts, start("profile"))
    facts = {
        "model": network.name,
        "batch": network.source.batch,
        **prices.identity.to_json(),
        "store": str(kept.path),
        "remarks": network.remarks,
        **found.to_json(),
    }
    said = [*_parts(network.name, runner.context, found, kept.path), *notes(network.remarks)]
    present(facts, said, as_json, complete=found.complete)


def _parts(name: str, context: Context, found: Profile, path: Path) -> Iterator[Part]:
    from iossim.base.tables import number_of
    from iossim.cost.measured.profiling import NOISY

    where = f"{context.backend} on {context.device}, {context.precision}, {context.engine} engine"
    yield wrapped(f"{name} by {where}", "bold")
    rows = [
        {
            **{key: row[key] for key in ("part", "stages", "measured", "kept", "median_us")},
            "spread_percent": None if row["median_spread"] is None else 100 * number_of(row["median_spread"]),
            "rejected": row["rejected_rounds"],
            "noisy": row["noisy"],
        }
        for row in (part.to_json() for part in found.parts)
    ]
    yield from table("", rows)
    yield (
        f"sequential: {found.sequential_us / 1e3:.3f} ms, {100 * found.noisy_fraction:.0f}% of it from noisy "
        f"measurements (10th to 90th percentile wider than {100 * NOISY:.0f}% of the median)"
    )
    yield f"a boundary between stages takes {found.boundary_us:.2f} us"
    noisy = sorted((one for part in found.parts for one in part.noisy), key=lambda one: -one.relative_spread)
    yield from (f"noisy: {one.words} ({100 * one.relative_spread:.0f}%)" for one in noisy[:_NAMED])
    if len(noisy) > _NAMED:
        yield f"and {len(noisy) - _NAMED} more noisy ones, see 'iossim measurements list --records'"
    yield f"took {found.duration_s:,.1f} s; all is kept in {path}"
    if not found.complete:
        yield "interrupted: the same command goes on where this one stopped"
