"""Prices are the same however many threads find them, and in a forked process too."""

from __future__ import annotations

import multiprocessing
from multiprocessing.connection import Connection

import numpy as np
import pytest

import iossim
from iossim.backends.simulator import stage_pricing
from iossim.base import threads
from iossim.schedule.batch import StageBatch
from iossim.schedule.problem import Masks, ScheduleProblem
from iossim.search.lattice import build_lattice


def many_stages() -> tuple[ScheduleProblem, Masks]:
    """More stages of one block than a single thread is given: all its states, as stages from nothing done."""
    network = iossim.load("randwire")
    problem = max((ScheduleProblem.of_block(network, block) for block in network.blocks), key=len)
    lattice = build_lattice(problem, 400_000)
    assert lattice is not None
    masks = lattice.masks[1:]
    assert len(masks) > stage_pricing.FEWEST_IN_PARALLEL
    return problem, masks


@pytest.mark.parametrize("cores", [1, 2, 3, 7])
def test_the_same_prices_on_any_number_of_cores(cores: int, monkeypatch: pytest.MonkeyPatch) -> None:
    problem, masks = many_stages()
    prices = iossim.cost_model("simulator", "v100-sxm2")
    few = [prices.price_stages(StageBatch.concurrent(problem, part)) for part in np.array_split(masks, 40)]
    monkeypatch.setattr(threads, "usable_cores", lambda: tuple(range(cores)))
    threads._pool.cache_clear()
    at_once = prices.price_stages(StageBatch.concurrent(problem, masks))
    threads._pool.cache_clear()
    assert np.array_equal(at_once, np.concatenate(few))


def test_a_forked_process_has_threads_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threads, "usable_cores", lambda: (0, 1))
    problem, masks = many_stages()
    prices = iossim.cost_model("simulator", "v100-sxm2")
    expected = prices.price_stages(StageBatch.concurrent(problem, masks))
    context = multiprocessing.get_context("fork")
    here, there = context.Pipe()

    def child(answer: Connection) -> None:
        answer.send(prices.price_stages(StageBatch.concurrent(problem, masks)).tobytes())

    process = context.Process(target=child, args=(there,))
    process.start()
    assert here.poll(60), "the forked process waits for threads that it does not have"
    assert here.recv() == expected.tobytes()
    process.join()
