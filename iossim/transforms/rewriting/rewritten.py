"""A network of a rewritten graph: its units and blocks, and its source, which names the rules and steps that made it.

Rules and steps stand as one text among the options of the source, so that a saved schedule needs no file of rules.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import lru_cache

from iossim.base.errors import OptionError
from iossim.base.user_files import read_json
from iossim.ir.graph import Graph, Names
from iossim.ir.network import Network, Unit, boundary, make_unit, subgraph
from iossim.models.passes.blocks import cut_as_loaded, one_block
from iossim.models.passes.unit_fusion import UnitPolicy, unit_policy
from iossim.transforms.rewriting.application import ReplayError, Step, replay
from iossim.transforms.rewriting.rule import Rule
from iossim.transforms.rewriting.rule_file import read_rules, write_rules
from iossim.transforms.transform import with_option

#: Policies in order of preference, if several make the units of a network: those of the papers' figures come first.
_POLICIES = ("conv-relu", "relu-sepconv", "fused", "none")


def rewritten_network(original: Network, graph: Graph) -> Network:
    """The network of a graph that rewriting made of ``original``'s.

    Units of the original whose ops are all as they were stay as they are; the other ops are fused by the unit policy
    that makes the most of the original's units. Blocks are cut anew, none with more units than the original was
    loaded with at most.
    """
    if graph is original.graph:
        return original
    kept = _untouched(original, graph)
    policy = policy_like(original)
    units = (*kept, *_fused(graph, kept, policy))
    units = tuple(sorted(units, key=lambda unit: unit.nodes[-1]))
    return cut_as_loaded(one_block(original, units, graph))


def _untouched(original: Network, graph: Graph) -> list[Unit]:
    """Units whose ops are unchanged, and whose outputs all come from the last op, so that no units form a cycle."""
    position = graph.position
    kept = []
    for unit in original.units:
        nodes = original.unit_nodes(unit)
        if all(node.name in position and graph.nodes[position[node.name]] == node for node in nodes):
            same = make_unit(graph, unit.name, unit.kind, [position[node.name] for node in nodes])
            last = graph.nodes[same.nodes[-1]]
            if len(nodes) == 1 or set(same.outputs) <= set(last.outputs):
                kept.append(same)
    return kept


@lru_cache(maxsize=16)
def policy_like(network: Network) -> UnitPolicy:
    """The policy that fuses most of the network's ops as the network has them; of equal ones the first."""
    own = {unit.nodes for unit in network.units}

    def alike(name: str) -> int:
        units = {unit.nodes for unit in unit_policy(name)(network.graph)}
        return sum(len(nodes) for nodes in own & units)

    return unit_policy(max(_POLICIES, key=alike))


def _fused(graph: Graph, kept: Sequence[Unit], policy: UnitPolicy) -> list[Unit]:
    """The ops outside the units that are kept, fused by a policy that sees nothing else."""
    taken = {node for unit in kept for node in unit.nodes}
    nodes = [node for index, node in enumerate(graph.nodes) if index not in taken]
    rest = subgraph(graph, nodes, *boundary(graph, nodes))
    names = Names(unit.name for unit in kept)
    position = [graph.position[node.name] for node in rest.nodes]
    return [
        make_unit(graph, names.fresh(unit.name), unit.kind, [position[node] for node in unit.nodes])
        for unit in policy(rest)
    ]


#: Option of a source that holds rules and steps.
OPTION = "rewriting"


def with_rewriting(network: Network, steps: Sequence[Step], rules: Iterable[Rule]) -> Network:
    """The rewritten network, whose source says how it is made of the one it was loaded from; without steps as it is.
    Raises OptionError for a network that was rewritten before.
    """
    if not steps:
        return network
    if OPTION in dict(network.source.options):
        raise OptionError(f"network {network.name!r} is rewritten already; rewrite the model that it was made of")
    applied = Counter(step.rule for step in steps)
    saved = {
        "rules": write_rules(rule for rule in rules if rule.name in applied),
        "steps": [step.to_json() for step in steps],
    }
    counted = ", ".join(f"{name} ({times})" if times > 1 else name for name, times in sorted(applied.items()))
    noun = "a substitution" if len(steps) == 1 else f"{len(steps)} substitutions"
    reading = (*network.reading, f"The graph is rewritten by {noun}: {counted}.")
    return with_option(replace(network, reading=reading), OPTION, saved)


def applied_rules(network: Network) -> dict[str, int]:
    """Number of times that each rule was applied to a network, by name; empty if it was not rewritten."""
    rewriting = dict(network.source.options).get(OPTION)
    steps = [] if rewriting is None else json.loads(rewriting)["steps"]
    return dict(sorted(Counter(step["rule"] for step in steps).items()))


def rewritten_again(network: Network, rewriting: str) -> Network:
    """The network rewritten as the text of its source says. Raises ReplayError for an invalid text, and for steps that
    cannot be taken from this network.
    """
    rules, steps = rules_and_steps(rewriting)
    graph = replay(network.graph, steps, {rule.name: rule for rule in rules})
    return with_rewriting(rewritten_network(network, graph), steps, rules)


def rules_and_steps(rewriting: str) -> tuple[tuple[Rule, ...], list[Step]]:
    """Rules and steps in the text of a source; raises ReplayError if there are none."""
    try:
        saved = read_json(rewriting)
        rules = read_rules(saved["rules"], "the schedule's rules")
        return rules, [Step.from_json(step) for step in saved["steps"]]
    except (ValueError, KeyError, TypeError):
        raise ReplayError(f"option {OPTION!r} of the schedule's source holds no rewriting; write it anew") from None
