"""The inequalities of :class:`iossim.cost.model.StageBounds` in their literal form, one stage at a time."""

from __future__ import annotations

import numpy as np

from iossim.cost.model import LateWork, StageBounds
from iossim.schedule.problem import bits


def least_price_us(bounds: StageBounds, groups: list[int]) -> float:
    """Lower bound of a concurrent stage's price; its groups (masks) in the order of issue."""
    units = bits(sum(groups))
    issue_us = np.zeros(len(bounds.serial_us)) if bounds.issue_us is None else bounds.issue_us
    issued_us = np.cumsum([0.0, *(issue_us[bits(group)].sum() for group in groups)])[:-1]
    least_us = [before + bounds.serial_us[bits(group)].sum() for before, group in zip(issued_us, groups, strict=True)]
    least_us += bounds.work_us[units].sum(axis=0).tolist()
    if len(groups) == 1:
        least_us.append(bounds.single_us[units].sum())
    elif bounds.late is not None:
        least_us += _late_us(bounds.late, groups, issued_us)
    return float(max(least_us))


def _late_us(late: LateWork, groups: list[int], issued_us: np.ndarray) -> list[float]:
    asks_us = issued_us + [late.lead_us[bits(group)[0]] for group in groups]
    first_us, second_us = asks_us.min(), asks_us[1:].min()
    share = late.share[bits(groups[0])].max(axis=0)
    work_us = late.work_us[bits(sum(groups))].sum(axis=0)
    least_us = work_us + first_us + (1 - share) * (second_us - first_us)
    return [
        least for least, most in zip(least_us.tolist(), late.most_groups.tolist(), strict=True) if len(groups) <= most
    ]
