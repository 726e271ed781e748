"""A rewritten network's source: the one that it was loaded from, and the rules and steps that lead from there.

They stand as one text among the options of the source, so that a saved schedule needs no file of rules: the rules that were applied are
in it.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace

from iossim.base.errors import OptionError
from iossim.ir.network import Network
from iossim.transforms.rewriting.application import ReplayError, Step, replay
from iossim.transforms.rewriting.rewritten import rewritten_network
from iossim.transforms.rewriting.rule import Rule
from iossim.transforms.rewriting.rule_file import read_rules, write_rules

#: The option of a source that holds them.
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
    option = (OPTION, json.dumps(saved, separators=(",", ":")))
    counted = ", ".join(f"{name} ({times})" if times > 1 else name for name, times in sorted(applied.items()))
    noun = "a substitution" if len(steps) == 1 else f"{len(steps)} substitutions"
    return replace(
        network,
        source=replace(network.source, options=(*network.source.options, option)),
        reading=(*network.reading, f"The graph is rewritten by {noun}: {counted}."),
    )


def applied_rules(network: Network) -> dict[str, int]:
    """By name the rules that a network was rewritten by, and how often each; none where it was not."""
    rewriting = dict(network.source.options).get(OPTION)
    steps = [] if rewriting is None else json.loads(rewriting)["steps"]
    return dict(sorted(Counter(step["rule"] for step in steps).items()))


def rewritten_again(network: Network, rewriting: str) -> Network:
    """The network as the text of its source says it was rewritten.

    Raises ReplayError for a text that says nothing, and for steps that cannot be taken from this network.
    """
    rules, steps = rules_and_steps(rewriting)
    graph = replay(network.graph, steps, {rule.name: rule for rule in rules})
    return with_rewriting(rewritten_network(network, graph), steps, rules)


def rules_and_steps(rewriting: str) -> tuple[tuple[Rule, ...], list[Step]]:
    """What the text of a source says; raises ReplayError for one that says nothing."""
    try:
        saved = json.loads(rewriting)
        rules = read_rules(saved["rules"], "the schedule's rules")
        return rules, [Step.from_json(step) for step in saved["steps"]]
    except (ValueError, KeyError, TypeError):
        raise ReplayError(
            f"option {OPTION!r} of the schedule's source is no saved rewriting; write it anew"
        ) from None
