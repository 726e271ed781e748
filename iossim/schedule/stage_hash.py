"""Hashes of stages by what they do: equal for stages whose groups are the same sequences of equal units.

The signature of a stage is its strategy and the multiset of its groups, each the sequence of its units' signatures: shapes
and attributes, neither names nor graph. Two stages of equal signature cost the same in any block, model or rewrite. A search has
hundreds of thousands of stages, so here it is a 64-bit number, made by compiled code. Two of a million stages that differ have
the same number with a probability of about 3e-8.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from iossim.compiled import jit
from iossim.schedule.batch import StageBatch
from iossim.schedule.masks import find_groups, lowest_bit, scramble
from iossim.schedule.problem import Masks


def unit_keys(signatures: Sequence[object], salt: object = "") -> Masks:
    """A 64-bit number for each unit's signature, uint64, shape ``[units]``: the same in every process, others by another ``salt``."""
    digests = [hashlib.sha256(f"{salt}\0{signature}".encode()).digest() for signature in signatures]
    return np.array([int.from_bytes(digest[:8], "little") for digest in digests], dtype=np.uint64)


def stage_hashes(batch: StageBatch, keys: Masks, *, ordered: bool = False) -> Masks:
    """The hash of each stage, uint64, shape ``[len(batch)]``; ``keys[u]`` is the number of unit ``u`` (:func:`unit_keys`).

    Units are compared by their keys, so that whoever makes the keys says what is equal, and by the names of their variants,
    where the batch has any. A unit of the number 0 does nothing: it counts in no sequence, and a group of such units is none.
    Groups are a multiset; ``ordered``, a sequence, as the host issues them.
    """
    masks = np.ascontiguousarray(batch.masks, dtype=np.uint64)
    strategies = np.ascontiguousarray(batch.strategies)
    if batch.variants is None:
        hashes: Masks = _hash_stages(masks, strategies, batch.problem.predecessors, keys, ordered)
        return hashes
    hashes = np.empty(len(batch), dtype=np.uint64)
    for names, stages in batch.by_variants():
        own = np.where((keys == 0) | np.array([not name for name in names]), keys, keys ^ unit_keys(names, "variant"))
        hashes[stages] = _hash_stages(masks[stages], strategies[stages], batch.problem.predecessors, own, ordered)
    return hashes


@jit
def _hash_stages(
    masks: Masks, strategies: NDArray[np.uint8], predecessors: Masks, keys: Masks, ordered: bool
) -> Masks:
    one = np.uint64(1)
    hashes = np.empty(len(masks), dtype=np.uint64)
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
                # A sum has no order.
                total = scramble(total ^ sequence) + one if ordered else total + scramble(sequence)
        hashes[index] = scramble(total)
    return hashes
