"""Identity of a stage by its work, in any block, network or rewrite, independent of its units' names.

It is the strategy and the groups, a multiset (or a sequence, if the host issues them in order), each the sequence
of its units' keys, which the caller chooses: units with equal keys are equal, one with an empty key does nothing. It
is available as a 64-bit number for each of millions of stages (:func:`stage_hashes`; among a million different stages
two share one with a probability of about 3e-8); stores of measurements have it as a text
(:func:`iossim.cost.measured.stage_plans.stage_digest`).
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from iossim.base.compiled import jit
from iossim.schedule.batch import StageBatch
from iossim.schedule.masks import find_groups, lowest_bit, scramble
from iossim.schedule.problem import Masks


def unit_keys(signatures: Sequence[object], salt: object = "") -> Masks:
    """A key for each unit's signature, uint64 ``[units]``, the same in every process for one ``salt``."""
    digests = [hashlib.sha256(f"{salt}\0{signature}".encode()).digest() for signature in signatures]
    return np.array([int.from_bytes(digest[:8], "little") for digest in digests], dtype=np.uint64)


def stage_hashes(batch: StageBatch, keys: Masks, *, ordered: bool = False) -> Masks:
    """The hash of each stage, uint64 of shape ``[len(batch)]``, the same in every process.

    ``keys``, uint64 of shape ``[units]``: the key of each unit of the problem (:func:`unit_keys`), 0 for one that does
    nothing. A stage of such units only has the hash 0. Units are also distinguished by the names of their variants, if
    the batch has any. With ``ordered``, groups are a sequence, by their lowest units.
    """
    masks = np.ascontiguousarray(batch.masks, dtype=np.uint64)
    strategies = np.ascontiguousarray(batch.strategies)
    if batch.variants is None:
        return _hashes(masks, strategies, batch.problem.predecessors, keys, ordered)
    hashes = np.empty(len(batch), dtype=np.uint64)
    for names, stages in batch.by_variants():
        own = np.where((keys == 0) | np.array([not name for name in names]), keys, keys ^ unit_keys(names, "variant"))
        hashes[stages] = _hashes(masks[stages], strategies[stages], batch.problem.predecessors, own, ordered)
    return hashes


def _hashes(masks: Masks, strategies: NDArray[np.uint8], predecessors: Masks, keys: Masks, ordered: bool) -> Masks:
    hashes = np.empty(len(masks), dtype=np.uint64)
    _hash_stages(masks, strategies, predecessors, keys, ordered, hashes)
    return hashes


@jit
def _hash_stages(
    masks: Masks, strategies: NDArray[np.uint8], predecessors: Masks, keys: Masks, ordered: bool, hashes: Masks
) -> None:
    one = np.uint64(1)
    groups = np.zeros(len(predecessors), dtype=np.uint64)
    for index in range(len(masks)):
        if strategies[index] != 0:
            groups[0], count = masks[index], 1
        else:
            count = find_groups(masks[index], predecessors, groups)
        total = np.uint64(strategies[index])
        for g in range(count):
            sequence = np.uint64(0)
            rest = groups[g]
            while rest:
                key = keys[lowest_bit(rest)]
                rest &= rest - one
                if key != 0:
                    sequence = scramble(sequence ^ key) + one
            if sequence != 0:
                # A sum is independent of the order.
                total = scramble(total ^ sequence) + one if ordered else total + scramble(sequence)
        hashes[index] = scramble(total)
