"""One limit for many kernels, one for activations and workspaces, and fronts of one kernel: each against every choice."""

import random
from collections.abc import Iterator, Sequence
from functools import cache
from itertools import pairwise, product
from math import inf

import pytest

import iossim
from iossim import api
from iossim.base.errors import OptionError
from iossim.execution.lower import lower_schedule
from iossim.execution.memory import check_happens_before, plan_memory
from iossim.execution.plan import Plan
from iossim.ir.ops.conv import Conv
from iossim.microbatching.division import BenchmarkRow, Configuration, Part, divide, front, micro_batch_sizes, within
from iossim.microbatching.kernels_under_limits import Memory, with_workspaces
from iossim.search.scheduler import schedule

Fronts = dict[str, tuple[Configuration, ...]]


def random_fronts(rng: random.Random) -> Fronts:
    """Fronts of up to five kernels, some of them alike."""
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


def seeds(quick: int, parts: int, size: int) -> list[object]:
    """Each of some seeds by itself, and many more in the slow tier, in parts."""
    slow = [
        pytest.param(range(1000 + size * part, 1000 + size * (part + 1)), marks=pytest.mark.slow)
        for part in range(parts)
    ]
    return [*([seed] for seed in range(quick)), *slow]


@pytest.mark.parametrize("tried", seeds(20, 4, 50), ids=str)
def test_against_every_choice(tried: Sequence[int]) -> None:
    for seed in tried:
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
        assert found.lower_bound_us <= found.time_us


def test_thousands_of_kernels_are_proved_to_the_byte() -> None:
    """Kernels of fronts of their own, gibibytes together; the limit is an eighth of what the fastest need."""
    rng = random.Random(3)
    fronts: Fronts = {}
    for number in range(2000):
        time_us, size = rng.uniform(50, 100), int(rng.uniform(1e7, 1e8))
        own = []
        for _ in range(rng.randint(2, 20)):
            own.append(Configuration((Part(1, 1, "a"),), time_us, size))
            time_us, size = time_us * rng.uniform(1.01, 1.5), int(size * rng.uniform(0.2, 0.95)) - 1
            if size < 0:
                break
        fronts[f"k{number}"] = tuple(own)
    limit = sum(own[0].workspace_bytes for own in fronts.values()) // 8
    found = divide(fronts, limit)
    assert found.proved
    assert found.workspace_bytes <= limit


def test_too_little_is_refused() -> None:
    fronts = {"a": (Configuration((Part(1, 1, "x"),), 1.0, 10),), "b": (Configuration((Part(1, 1, "x"),), 1.0, 20),)}
    assert divide(fronts, 30).proved
    with pytest.raises(OptionError, match=r"2 kernels need at least 30 bytes; give 30B or more"):
        divide(fronts, 29)


def fastest(
    rows: Sequence[BenchmarkRow], batch: int, limit_bytes: int, policy: str = "all", kernel: str = "kernel"
) -> Configuration:
    return within(front(rows, batch, policy), limit_bytes, batch, kernel)


def test_sizes_of_micro_batches_and_the_fewest_of_equal_times() -> None:
    assert micro_batch_sizes("power-of-two", 12) == [1, 2, 4, 8, 12]
    (one,) = front([BenchmarkRow(size, "a", float(size), 0) for size in (1, 3, 4)], 6)
    assert str(one) == "2x3 a"
    (one,) = front([BenchmarkRow(size, "a", float(size), 0) for size in (1, 4)], 6)
    assert str(one) == "1x4 a + 2x1 a"


def partitions(batch: int, largest: int) -> Iterator[tuple[int, ...]]:
    if not batch:
        yield ()
    for size in range(min(batch, largest), 0, -1):
        for rest in partitions(batch - size, size):
            yield (size, *rest)


def random_rows(rng: random.Random, batch: int, algorithms: int) -> list[BenchmarkRow]:
    """Small numbers, so that there are ties; some sizes are missing."""
    return [
        BenchmarkRow(size, name, float(rng.randint(1, 9)), rng.randint(0, 6))
        for size in range(1, batch + 1)
        for name in "abcde"[:algorithms]
        if rng.random() < 0.7
    ]


def check_front(seed: int, batches: tuple[int, int]) -> None:
    """Against all partitions of the batch: of each size only the fastest row within a limit counts."""
    rng = random.Random(seed)
    batch = rng.randint(*batches)
    rows = random_rows(rng, batch, rng.randint(2, 5))
    found = front(rows, batch)
    least = [inf]  # under no limit at all, then under each
    for limit in range(7):
        fastest_us = [
            min((row.time_us for row in rows if row.batch == size and row.workspace_bytes <= limit), default=inf)
            for size in range(batch + 1)
        ]
        least.append(min(sum(fastest_us[size] for size in sizes) for sizes in partitions(batch, batch)))
    expected = [(us, limit) for limit, (before, us) in enumerate(pairwise(least)) if us < before]
    assert [(one.time_us, one.workspace_bytes) for one in found] == expected[::-1]
    for one in found:
        assert sum(part.micro_batch * part.count for part in one.parts) == batch
        assert fastest(rows, batch, one.workspace_bytes) == one


@pytest.mark.parametrize("tried", seeds(44, 10, 100), ids=str)
def test_against_all_partitions(tried: Sequence[int]) -> None:
    for seed in tried:
        if not 40 <= seed < 44:
            check_front(seed, (1, 6))
        if seed >= 40:
            check_front(seed, (12, 24 if seed < 44 else 20))


@pytest.mark.parametrize("policy", ["all", "power-of-two"])
def test_undivided_is_never_faster(policy: str) -> None:
    rng = random.Random(7)
    rows = [*random_rows(rng, 16, 4), BenchmarkRow(16, "a", 30.0, 0)]
    for limit in range(7):
        assert fastest(rows, 16, limit, policy).time_us <= fastest(rows, 16, limit, "undivided").time_us


def test_what_cannot_be_is_refused() -> None:
    rows = [BenchmarkRow(4, "a", 1.0, 4096)]
    with pytest.raises(OptionError, match=r"layer 'x' needs at least 4096 bytes; give 4096B or more"):
        fastest(rows, 8, 4095, kernel="layer 'x'")
    with pytest.raises(OptionError, match="no micro-batches with rows add up to a batch of 6"):
        fastest(rows, 6, 1 << 30)
    with pytest.raises(OptionError, match="did you mean 'power-of-two'"):
        front(rows, 8, "power-of-tow")


Kernels = dict[str, list[str]]


@cache
def planned() -> tuple[Plan, Kernels]:
    """The network of the thesis' example, and its convolutions by unit."""
    network = iossim.load("ios_sample")
    found = schedule(network, api.cost_model("simulator", "v100-sxm2"), "sequential")
    kernels = {
        unit.name: [
            network.graph.nodes[node].name for node in unit.nodes if isinstance(network.graph.nodes[node].op, Conv)
        ]
        for unit in network.units
    }
    return lower_schedule(found, network, in_place=True), kernels


def fronts_of(rng: random.Random, kernels: Kernels) -> Fronts:
    """A few configurations of each kernel, of up to as much as the activations have; one needs nothing."""
    found = {}
    for name in (kernel for own in kernels.values() for kernel in own):
        rows = [BenchmarkRow(4, f"a{n}", rng.uniform(1, 20), rng.randint(1, 3_000_000)) for n in range(4)]
        found[name] = front([*rows, BenchmarkRow(1, "none", 30.0, 0)], 4)
    return found


def best_us(fronts: Fronts, plan: Plan, kernels: Kernels, limit: int) -> float:
    """The fastest of all choices whose arena fits."""
    ways = sorted(product(*fronts.values()), key=lambda way: sum(one.time_us for one in way))
    for way in ways:
        chosen = dict(zip(fronts, way, strict=True))
        if plan_memory(with_workspaces(plan, kernels, chosen)).arena_bytes <= limit:
            return sum(one.time_us for one in way)
    raise AssertionError("some choice fits")


@pytest.mark.parametrize("seed", range(4))
def test_against_every_choice_whose_arena_fits(seed: int) -> None:
    rng = random.Random(seed)
    plan, kernels = planned()
    fronts = fronts_of(rng, kernels)
    limit = plan_memory(plan).arena_bytes + rng.randint(0, 2_000_000)
    found = Memory(plan, kernels, limit).divided(fronts)
    whole = plan_memory(with_workspaces(plan, kernels, found.chosen))
    check_happens_before(whole)
    assert whole.arena_bytes == found.arena_bytes <= limit
    time_us = sum(one.time_us for one in found.chosen.values())
    assert time_us == pytest.approx(best_us(fronts, plan, kernels, limit), rel=1e-12)
    assert found.lower_bound_us == pytest.approx(time_us, rel=1e-12)


def test_too_little_says_what_would_do() -> None:
    plan, kernels = planned()
    fronts = fronts_of(random.Random(0), kernels)
    with pytest.raises(OptionError, match=r"activations and workspaces need \d+ bytes; give") as refused:
        Memory(plan, kernels, 1000).divided(fronts)
    enough = int(str(refused.value).rpartition("give ")[2].partition("B")[0])
    assert Memory(plan, kernels, enough).divided(fronts).arena_bytes <= enough
