"""``python -m evidence hopper``: what was recorded of an H100 beside its simulation, also with a network left out."""

from __future__ import annotations

from itertools import chain

from iossim.cli.options import command
from iossim.cli.outputs import present, table


@command
def hopper(as_json: bool = False) -> None:
    """Print the errors, in %, of convolutions, products, sets of them and networks in bf16, and of rules that are
    chosen anew without the network that they are judged by.
    """
    from evidence.concurrency import grouped_experts, hopper_left_out, hopper_operators, hopper_sets

    found = hopper_left_out.judged() | {"grids": hopper_operators.grids(), "networks": hopper_sets.networks()}
    found |= {"grouped_experts": grouped_experts.judged()}
    rows = {
        name: [{name.replace("_", " "): key, **figures} for key, figures in each.items()]
        for name, each in found.items()
    }
    families = {each: each for each in found["families"]}  # columns of one table, whose names keep their underscores
    present(found, chain.from_iterable(table("", each, titles=families) for each in rows.values()), as_json)
