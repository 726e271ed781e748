"""``python -m evidence hopper`` and ``intervals``: rules and intervals, also with what they are judged by left out."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import chain
from typing import Any

from iossim.cli.options import command
from iossim.cli.outputs import present, table


@command
def hopper(as_json: bool = False) -> None:
    """Print the errors, in %, of convolutions, products, sets of them and networks in bf16, and of rules that are
    chosen anew without the network that they are judged by.
    """
    from evidence.concurrency import grouped_experts, hopper_left_out, hopper_operators, hopper_sets

    found = hopper_left_out.judged() | {"grids": hopper_operators.grids(), "networks": hopper_sets.networks()}
    _present(found | {"grouped_experts": grouped_experts.judged()}, as_json)


@command
def intervals(as_json: bool = False) -> None:
    """Print how many measurements are inside their intervals, in %, the order of schedules, and the factors of
    ``prediction/bands.yaml`` as the data has them.
    """
    from evidence.validation.intervals import intervals as recompute

    _present(recompute(), as_json)


def _present(found: Mapping[str, Any], as_json: bool) -> None:
    """A table for each of several results by row and column."""
    rows = {
        name: [{name.replace("_", " "): key, **figures} for key, figures in each.items()]
        for name, each in found.items()
    }
    families = {each: each for each in found.get("families", ())}  # columns whose names keep their underscores
    present(found, chain.from_iterable(table("", each, titles=families) for each in rows.values()), as_json)
