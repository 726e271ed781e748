"""Bounds of the variants of units."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from iossim.cost.model import StageBounds
from iossim.schedule.problem import Masks


class VariantBounds(NamedTuple):
    """Bounds of a unit's variants, as if each were a separate unit, in the order of ``variants``.

    ``keys`` (uint64, shape ``[variants]``) are equal for variants with equal prices in every stage.
    """

    bounds: StageBounds
    keys: Masks


def least_of_variants(ways: Sequence[VariantBounds]) -> StageBounds:
    """Bounds that hold for any variants: for each unit the minimum over its variants, separately for each number."""
    own = [way.bounds for way in ways]
    work_us = np.stack([each.work_us.min(axis=0) for each in own])
    serial_us, single_us = (
        np.array([numbers.min() for numbers in column])
        for column in ([each.serial_us for each in own], [each.single_us for each in own])
    )
    issue_us = [each.issue_us.min() for each in own if each.issue_us is not None]
    return StageBounds(serial_us, single_us, work_us, np.array(issue_us) if len(issue_us) == len(own) else None)
