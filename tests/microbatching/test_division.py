"""One limit for many kernels, against every choice of their configurations."""

from __future__ import annotations

import random
from itertools import product

import pytest

from iossim.base.errors import OptionError
from iossim.microbatching.division import BenchmarkRow, Configuration, Part, divide, front

Fronts = dict[str, tuple[Configuration, ...]]


def random_fronts(rng: random.Random) -> Fronts:
    """Of up to five kernels, some of them alike."""
    found: Fronts = {}
    for number in range(rng.randint(1, 5)):
        rows = [
            BenchmarkRow(size, name, float(rng.randint(1, 20)), rng.randint(0, 30))
            for size in range(1, 9)
            for name in "abc"
            if rng.random() < 0.8
        ]
        own = front([*rows, BenchmarkRow(1, "z", 30.0, 0)], 8)
        found[f"k{number}"] = found["k0"] if number and rng.random() < 0.3 else own
    return found


def holds_against_all(seed: int) -> None:
    rng = random.Random(seed)
    fronts, limit = random_fronts(rng), rng.randint(0, 60)
    found = divide(fronts, limit)
    best_us = min(
        sum(one.time_us for one in way)
        for way in product(*fronts.values())
        if sum(one.workspace_bytes for one in way) <= limit
    )
    assert list(found.chosen) == list(fronts)
    assert all(one in fronts[kernel] for kernel, one in found.chosen.items())
    assert found.workspace_bytes <= limit
    assert found.time_us == pytest.approx(best_us, rel=1e-12)
    assert found.proved
    assert found.relaxed_us <= found.lower_bound_us * (1 + 1e-12)
    assert found.lower_bound_us <= found.time_us <= found.greedy_us * (1 + 1e-12)


@pytest.mark.parametrize("seed", range(20))
def test_against_every_choice(seed: int) -> None:
    holds_against_all(seed)


@pytest.mark.slow
@pytest.mark.parametrize("part", range(4))
def test_against_every_choice_two_hundred_times(part: int) -> None:
    for seed in range(50 * part, 50 * part + 50):
        holds_against_all(1000 + seed)


def many(kernels: int, seed: int = 3) -> tuple[Fronts, int]:
    """Kernels of fronts of their own, gibibytes together; the limit is an eighth of what the fastest need."""
    rng = random.Random(seed)
    fronts: Fronts = {}
    for number in range(kernels):
        time_us, size = rng.uniform(50, 100), int(rng.uniform(1e7, 1e8))
        own = []
        for _ in range(rng.randint(2, 20)):
            own.append(Configuration((Part(1, 1, "a"),), time_us, size))
            time_us, size = time_us * rng.uniform(1.01, 1.5), int(size * rng.uniform(0.2, 0.95)) - 1
            if size < 0:
                break
        fronts[f"k{number}"] = tuple(own)
    return fronts, sum(own[0].workspace_bytes for own in fronts.values()) // 8


def test_thousands_of_kernels_are_proved_to_the_byte() -> None:
    fronts, limit = many(2000)
    found = divide(fronts, limit)
    assert found.proved
    assert found.workspace_bytes <= limit
    assert found.relaxed_us < found.time_us <= found.greedy_us


def test_too_little_is_refused() -> None:
    fronts = {"a": (Configuration((Part(1, 1, "x"),), 1.0, 10),), "b": (Configuration((Part(1, 1, "x"),), 1.0, 20),)}
    assert divide(fronts, 30).proved
    with pytest.raises(OptionError, match=r"2 kernels need at least 30 bytes; give 30B or more"):
        divide(fronts, 29)
