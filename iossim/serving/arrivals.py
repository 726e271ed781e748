"""Requests for several models that arrive over time at one device: their waiting and service times.

Each model answers its requests one by one, in the order of arrival. A policy chooses what runs next:

- *one after another*: one request at a time occupies the device;
- *one stream a model*: all models run concurrently. While a set of them runs, each goes as much slower than alone as
  in the plan that starts that set together, so that a later start shares the remaining capacity;
- *streams*: the device takes a request of each model that has one, and runs the schedule that was found for that set;
  later arrivals wait until all of it has ended.
"""

from __future__ import annotations

import csv
import math
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

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

    def to_json(self) -> dict[str, object]:
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


class _Queues:
    """The requests that wait for each model, by number, and those to come, each with the time of its arrival."""

    def __init__(self, requests: Sequence[Request]) -> None:
        self.waiting: dict[str, deque[int]] = {}
        self._models = [request.model for request in requests]
        self._coming: deque[tuple[int, float]] = deque()
        time_us = 0.0
        for number, request in enumerate(requests):
            time_us += max(0.0, request.time_us - time_us)
            self._coming.append((number, time_us))

    @property
    def next_us(self) -> float:
        """Time of the next arrival; infinite after the last."""
        return self._coming[0][1] if self._coming else math.inf

    def arrive(self) -> float:
        """Let the next request wait for its model; returns the time."""
        number, time_us = self._coming.popleft()
        self.waiting.setdefault(self._models[number], deque()).append(number)
        return time_us


def serve_in_turns(requests: Sequence[Request], ends: Ends, together: bool) -> list[float]:
    """Latency of each request if one set at a time occupies the device: of all models that have requests if
    ``together``, else of the earliest request alone.
    """
    queues, latencies_us = _Queues(requests), [0.0] * len(requests)
    now_us, left = 0.0, len(requests)
    while left:
        while queues.next_us <= now_us:
            queues.arrive()
        if not any(queues.waiting.values()):
            now_us = queues.arrive()
        heads = sorted((own[0], model) for model, own in queues.waiting.items() if own)
        taken = {model: queues.waiting[model].popleft() for _, model in (heads if together else heads[:1])}
        ends_us = ends(frozenset(taken))
        for model, number in taken.items():
            latencies_us[number] = now_us + ends_us[model] - requests[number].time_us
        left -= len(taken)
        now_us += max(ends_us.values())
    return latencies_us


def serve_side_by_side(requests: Sequence[Request], ends: Ends) -> list[float]:
    """Latency of each request if all models that have one run concurrently."""
    queues, latencies_us = _Queues(requests), [0.0] * len(requests)
    alone_us = {model: ends(frozenset([model]))[model] for model in {request.model for request in requests}}
    left_us: dict[str, float] = {}
    now_us, done = 0.0, 0
    while done < len(requests):
        for model, own in queues.waiting.items():
            if own and model not in left_us:
                left_us[model] = alone_us[model]
        if not left_us:
            now_us = queues.arrive()
            continue
        together = ends(frozenset(left_us))
        speeds = {
            model: alone_us[model] / max(alone_us[model], together[model]) if alone_us[model] else 1.0
            for model in left_us
        }
        went_us = min(left / speeds[model] for model, left in left_us.items())
        if queues.next_us < now_us + went_us:
            began_us, now_us = now_us, queues.arrive()
            went_us = now_us - began_us
        else:
            now_us += went_us
        for model in list(left_us):
            left_us[model] -= went_us * speeds[model]
            if left_us[model] <= _ROUNDING * alone_us[model]:
                del left_us[model]
                number = queues.waiting[model].popleft()
                latencies_us[number] = now_us - requests[number].time_us
                done += 1
    return latencies_us
