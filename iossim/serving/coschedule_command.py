"""``iossim coschedule``: several models at a time on one device, and requests for them over time."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from iossim.base.errors import OptionError, once
from iossim.cli.options import ModelOptions, StreamOptions, command
from iossim.cli.outputs import Part, json_file, notes, present, text_file, wrapped
from iossim.cli.progress import interruptible, progress_bars

if TYPE_CHECKING:
    from iossim.serving.arrivals import Served
    from iossim.serving.coschedule import Coschedule
    from iossim.serving.union import Objective

_REQUESTS = 2000


@command
def coschedule(
    models: list[str],
    copies: int = 1,
    *,
    device: str | None = None,
    reading: ModelOptions,
    engine: str = "auto",
    streams: StreamOptions,
    objective: str = "makespan",
    weight: list[str] | None = None,
    limit: list[str] | None = None,
    arrivals: str | None = None,
    requests: int = _REQUESTS,
    arrival_seed: int = 0,
    out: Path | None = None,
    as_json: bool = False,
) -> None:
    """Run several models concurrently: one after another, in time slices, one stream each, partitions of SMs, shared
    stages, and shared streams.

    --limit with the makespan maximises requests per second while that model answers in time.

    With --arrivals, requests for the models arrive over time, and the table has percentiles of their latency for each
    policy and load.
    """
    from iossim import api
    from iossim.base.user_files import check_writable
    from iossim.search.anytime import Steps
    from iossim.serving.arrivals import poisson, read_trace
    from iossim.serving.coschedule import LOADS, Server
    from iossim.serving.coschedule import coschedule as run
    from iossim.serving.coschedule_report import coschedule_trace

    if copies < 1:
        raise OptionError(f"--copies {copies} is not possible; give 1 or more")
    if requests < 1 or arrival_seed < 0:
        raise OptionError("--requests is 1 or more, and --arrival-seed 0 or more")
    if arrivals not in (None, "poisson") and (requests, arrival_seed) != (_REQUESTS, 0):
        raise OptionError("--requests and --arrival-seed are of random requests; give --arrivals poisson, or neither")
    if device is None:
        raise OptionError("coschedule needs a device; give --device NAME ('iossim devices list' shows them)")
    if out is not None:
        check_writable(out)
    search = streams.of(api.search_options())
    read = {model: reading.network(model) for model in dict.fromkeys(models)}
    labelled = _labelled(models, copies)
    networks = {name: read[model] for name, model in labelled.items()}
    names = list(networks)
    goal = _objective(objective, weight or [], limit or [], labelled)
    prices = api.cost_model("simulator", device, next(iter(networks.values())).precision, engine)
    with progress_bars(quiet=as_json, unit="searches") as progress, interruptible():
        found = run(networks, prices, search, progress("coschedule"), goal)
        served: list[Served] = []

        def serve(given: str) -> None:
            server = Server(networks, prices, search, found)
            if given == "poisson":
                if not found.baseline.makespan_us:
                    raise OptionError("--arrivals poisson: the models take no time, and no requests load the device")
                rate_per_us = len(networks) / found.baseline.makespan_us
                for load in LOADS:
                    served.extend(server.serve(poisson(names, load * rate_per_us, requests, arrival_seed), load))
            else:
                trace = read_trace(Path(given), names)
                served.extend(server.serve(trace, server.load(trace)))

        steps = Steps(interrupted=not found.complete)
        if arrivals is not None:
            steps.take(None, serve, arrivals)
    complete = not steps.interrupted
    document = {**found.to_json(), "complete": complete, "served": [one.to_json() for one in served]}
    files = {"coschedule.json": json_file(document), "trace.json": text_file(coschedule_trace(found))}
    parts = _told(found, served, steps.interrupted)
    present(document, parts, as_json, out=out, files=lambda: files, complete=complete)


def _told(found: Coschedule, served: Sequence[Served], interrupted: bool) -> Iterator[Part]:
    from iossim.serving.coschedule_report import bound_words, served_table, ways_table

    yield ways_table(found)
    yield wrapped(bound_words(found))
    yield from notes(found.notes)
    if served:
        yield served_table(served)
    if interrupted:
        yield wrapped("Interrupted: these are the ways, and the loads, that were known by then")


def _labelled(models: list[str], copies: int) -> dict[str, str]:
    """Each model, and its copies, by a distinct label."""
    given = [model for model in models for _ in range(copies)]
    labels = [Path(model).stem for model in given]
    return {
        label if labels.count(label) == 1 else f"{label}#{labels[:place].count(label) + 1}": model
        for place, (label, model) in enumerate(zip(labels, given, strict=True))
    }


def _objective(name: str, weights: list[str], limits: list[str], labels: Mapping[str, str]) -> Objective:
    from iossim.serving.union import Objective

    if name not in ("makespan", "latency"):
        raise OptionError(f"--objective {name!r} is not known; give makespan or latency")
    if weights and name == "makespan":
        raise OptionError("--weight is of --objective latency; give both, or neither")
    own = dict.fromkeys(labels, 1.0) if name == "latency" else {}
    limits_us = {label: 1e3 * limit_ms for label, limit_ms in _by_label("--limit", limits, labels).items()}
    return Objective({**own, **_by_label("--weight", weights, labels)}, limits_us)


def _by_label(option_name: str, given: list[str], labels: Mapping[str, str]) -> dict[str, float]:
    """Values by label; one of a model is that of each of its copies, which are labelled in ``labels``."""
    found: dict[str, float] = {}
    once([text.rpartition("=")[0] for text in given], option_name)
    for text in given:
        label, _, number_text = text.rpartition("=")
        try:
            value = float(number_text)
        except ValueError:
            value = -1.0
        if not label or not 0.0 < value < float("inf"):
            raise OptionError(f"{option_name} {text!r} is not possible; give MODEL=NUMBER, a number above 0")
        copies = [one for one, model in labels.items() if label in (one, Path(model).stem)]
        found |= dict.fromkeys(copies or [label], value)
    return found
