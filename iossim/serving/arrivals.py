"""Requests for several models that arrive over time at one device: their waiting and service times, by SimPy.

Each model answers its requests one by one, in the order of arrival. A policy chooses what runs next:

- *one after another*: one request at a time occupies the device;
- *one stream a model*: all models run concurrently. While a set of them runs, each goes as much slower than alone as
  in the plan that starts that set together, so that a later start shares the remaining capacity;
- *streams*: the device takes a request of each model that has one, and runs the schedule that was found for that set;
  later arrivals wait until all of it has ended.
"""

from __future__ import annotations

import csv
from collections import deque
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import simpy

from iossim.base.errors import OptionError
from iossim.base.user_files import NumberError, read_number, read_text

#: End of each model of a set, us, if all start together.
Ends = Callable[[frozenset[str]], Mapping[str, float]]
_PERCENTILES = (50, 95, 99)
#: Latest time of a request, ms: the year 2286, if it counts from 1970.
_LATEST_MS = 1e13
#: A smaller remainder of a request, relative to the whole, counts as rounding.
_ROUNDING = 1e-9


@dataclass(frozen=True, slots=True)
class Request:
    """A request for a model, and its arrival time, us."""

    time_us: float
    model: str


@dataclass(frozen=True)
class Served:
    """Requests as a policy served them: ``latencies_us`` in the order of arrival, each from arrival to end."""

    policy: str
    load: float
    latencies_us: tuple[float, ...]

    @property
    def percentiles_us(self) -> dict[int, float]:
        return {part: float(np.percentile(self.latencies_us, part)) for part in _PERCENTILES}

    def to_json(self) -> dict[str, Any]:
        percentiles = {f"p{part}_us": us for part, us in self.percentiles_us.items()}
        return {"policy": self.policy, "load": self.load, "requests": len(self.latencies_us), **percentiles}


def poisson(models: Sequence[str], rate_per_us: float, count: int, seed: int) -> list[Request]:
    """``count`` requests at the total rate of all models, each for a random model."""
    generator = np.random.default_rng(seed)
    times_us = np.cumsum(generator.exponential(1.0 / rate_per_us, count)).tolist()
    return [Request(time_us, models[int(generator.integers(len(models)))]) for time_us in times_us]


def read_trace(path: Path, models: Sequence[str]) -> list[Request]:
    """Requests of a CSV file with the columns ``time_ms`` and ``model``, sorted by time, counted from the first one's.

    Raises OptionError naming the faulty line.
    """
    found: list[tuple[float, str]] = []
    lines = read_text(path, "arrivals", "give a CSV file with the columns time_ms and model", OptionError).splitlines()
    for number, row in enumerate(csv.DictReader(lines), 2):
        model = row.get("model") or ""
        try:
            time_ms = read_number(row.get("time_ms"), most=_LATEST_MS)
        except NumberError as error:
            raise OptionError(f"{path}, line {number}: time_ms {row.get('time_ms')!r} {error}") from None
        if model not in models:
            raise OptionError(f"{path}, line {number}: {model!r} is not one of the models; models: {', '.join(models)}")
        found.append((time_ms, model))
    if not found:
        raise OptionError(f"{path} holds no requests; give a line for each, below the names time_ms,model")
    first_ms = min(time_ms for time_ms, _ in found)
    return sorted((Request((time_ms - first_ms) * 1e3, model) for time_ms, model in found), key=lambda one: one.time_us)


def _arrive(
    environment: simpy.Environment,
    requests: Sequence[Request],
    waiting: dict[str, deque[int]],
    told: Sequence[simpy.Event],
) -> Generator[simpy.Event, Any, None]:
    """Let each request wait for its model from its time on; the one event in ``told`` succeeds with it."""
    for number, request in enumerate(requests):
        yield environment.timeout(max(0.0, request.time_us - environment.now))
        waiting.setdefault(request.model, deque()).append(number)
        if not told[0].triggered:
            told[0].succeed()


def serve_in_turns(requests: Sequence[Request], ends: Ends, together: bool) -> list[float]:
    """Latency of each request if one set at a time occupies the device: of all models that have requests if
    ``together``, else of the earliest request alone.
    """
    environment = simpy.Environment()
    waiting: dict[str, deque[int]] = {}
    latencies_us = [0.0] * len(requests)
    arrived = [environment.event()]

    def device() -> Generator[simpy.Event, Any, None]:
        left = len(requests)
        while left:
            heads = sorted((own[0], model) for model, own in waiting.items() if own)
            if not heads:
                arrived[0] = environment.event()
                yield arrived[0]
                continue
            taken = {model: waiting[model].popleft() for _, model in (heads if together else heads[:1])}
            ends_us = ends(frozenset(taken))
            for model, number in taken.items():
                latencies_us[number] = environment.now + ends_us[model] - requests[number].time_us
            left -= len(taken)
            yield environment.timeout(max(ends_us.values()))

    environment.process(_arrive(environment, requests, waiting, arrived))
    environment.run(environment.process(device()))
    return latencies_us


def serve_side_by_side(requests: Sequence[Request], ends: Ends) -> list[float]:
    """Latency of each request if all models that have one run concurrently."""
    environment = simpy.Environment()
    waiting: dict[str, deque[int]] = {}
    left_us: dict[str, float] = {}
    latencies_us = [0.0] * len(requests)
    alone_us = {model: ends(frozenset([model]))[model] for model in {request.model for request in requests}}
    changed = [environment.event()]

    def device() -> Generator[simpy.Event, Any, None]:
        done = 0
        while done < len(requests):
            for model, own in waiting.items():
                if own and model not in left_us:
                    left_us[model] = alone_us[model]
            changed[0] = environment.event()
            if not left_us:
                yield changed[0]
                continue
            together = ends(frozenset(left_us))
            speeds = {
                model: alone_us[model] / max(alone_us[model], together[model]) if alone_us[model] else 1.0
                for model in left_us
            }
            first_us = min(left / speeds[model] for model, left in left_us.items())
            began_us, ended = environment.now, environment.timeout(first_us)
            yield changed[0] | ended
            # A late clock has too few digits to determine the duration.
            went_us = first_us if ended.processed else environment.now - began_us
            for model in list(left_us):
                left_us[model] -= went_us * speeds[model]
                if left_us[model] <= _ROUNDING * alone_us[model]:
                    del left_us[model]
                    number = waiting[model].popleft()
                    latencies_us[number] = environment.now - requests[number].time_us
                    done += 1

    environment.process(_arrive(environment, requests, waiting, changed))
    environment.run(environment.process(device()))
    return latencies_us
