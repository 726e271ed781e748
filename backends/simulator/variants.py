"""Variants of units: every choice of kernel candidates, and prices and bounds of stages whose units run as some."""

from __future__ import annotations

from itertools import product
from math import fsum

import numpy as np

from iossim.backends.simulator.kernel_model import KernelModel
from iossim.backends.simulator.preparation import PreparedProblem
from iossim.backends.simulator.stage_bounds import stage_bounds
from iossim.backends.simulator.stage_pricing import StagePricing
from iossim.backends.simulator.unit_prices import UnitPrice, UnitPrices
from iossim.cost.facts import VariantBounds
from iossim.cost.model import Prices
from iossim.hardware.lowering.unit import StepCandidates
from iossim.schedule.batch import FASTEST, StageBatch, UnitVariant, Variants
from iossim.schedule.problem import MAX_UNITS, ScheduleProblem, bits


def variants_of(units: UnitPrices, problem: ScheduleProblem) -> tuple[tuple[UnitVariant, ...], ...]:
    """For each unit every choice of a candidate for each of its steps, what is fastest alone first."""
    network, keys = units.network(problem), units.keys(problem)
    for unit, key in zip(problem.units, keys, strict=True):
        if key not in units.variants:
            units.variants[key] = _of_steps(units.whole, units.steps(network, unit))
    return tuple(units.variants[key] for key in keys)


def _of_steps(model: KernelModel, steps: StepCandidates) -> tuple[UnitVariant, ...]:
    """The variants of a unit on a device, the fastest first.

    A unit's kernels run one after another, so that its workspace is that of the step that needs most.
    """
    names = [[candidate.algorithm for candidate in model.fitting(candidates)] for candidates in steps]
    dispatch_us = model.profile.engine.dispatch_kernel_us
    found = []
    for name in (FASTEST, *(map("+".join, product(*names)) if steps else ())):
        chosen = model.chosen(steps, name)
        alone_us = fsum(price.alone_us + dispatch_us for _, own in chosen for price in own)
        pairs = [pair for one, own in chosen for pair in zip(own, one.kernels, strict=True)]
        held = ((max(price.slots[:4]), kernel.blocks) for price, kernel in pairs)
        share, blocks = max(held, default=(0.0, 0))
        workspace_bytes = max((one.workspace_bytes for one, _ in chosen), default=0)
        found.append(UnitVariant(name, alone_us, workspace_bytes, blocks, share))
    return tuple(found)


def price_varied(stages: StagePricing, batch: StageBatch, variants: Variants) -> Prices:
    """The price of each of a batch of concurrent stages, whose units run as other variants from stage to stage.

    Each variant that occurs stands as a unit of its own; where there are more than 64 the batch is halved. The
    device is not divided.
    """
    problem = batch.problem
    held = batch.held
    places = [(unit, at) for unit in range(len(problem)) for at in np.unique(variants.chosen[held[:, unit], unit])]
    if len(places) > MAX_UNITS:
        halves = np.array_split(np.arange(len(batch)), 2)
        return np.concatenate(
            [price_varied(stages, batch.take(half), Variants(variants.names, variants.chosen[half])) for half in halves]
        )
    masks = np.zeros(len(batch), dtype=np.uint64)
    kernels, spread = [], [0] * len(problem)
    by_place = {
        at: stages.units.price(problem, [own[min(at, len(own) - 1)] for own in variants.names]) for _, at in places
    }
    for place, (unit, at) in enumerate(places):
        masks[held[:, unit] & (variants.chosen[:, unit] == at)] |= np.uint64(1 << place)
        kernels.append(by_place[at][unit])
        spread[unit] |= 1 << place
    before = [sum(spread[unit] for unit in bits(int(mask))) for mask in problem.predecessors]
    predecessors = np.array([before[unit] for unit, _ in places], dtype=np.uint64)
    return stages.fluid(predecessors, PreparedProblem.of(kernels).kernels, masks)


def _prices(units: UnitPrices, problem: ScheduleProblem, sms: int | None = None) -> list[list[UnitPrice]]:
    """For each unit its price as each of its variants, the fastest first."""
    network = units.network(problem)
    return [
        [units.price_unit(network, unit, variant.name, sms) for variant in variants]
        for unit, variants in zip(problem.units, variants_of(units, problem), strict=True)
    ]


def bounds_of_variants(stages: StagePricing, problem: ScheduleProblem) -> tuple[VariantBounds, ...]:
    """For each unit the bounds of its variants."""
    variants = _prices(stages.units, problem)
    if not stages.is_divided:
        ways = [PreparedProblem.of(own) for own in variants]
        return tuple(VariantBounds(stage_bounds(own, stages.interference), own.unit_keys) for own in ways)
    from iossim.backends.simulator.partition import PreparedPartition

    by_size = [(sms, _prices(stages.units, problem, sms)) for sms in stages.units.sizes]
    rates = stages.units.whole.rates
    parts = [
        PreparedPartition.of(stages.profile, rates, own, [(sms, prices[unit]) for sms, prices in by_size])
        for unit, own in enumerate(variants)
    ]
    return tuple(VariantBounds(own.bounds(), own.unit_keys) for own in parts)
