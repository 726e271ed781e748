"""What each substitution changed and was worth: a chain of costs from the network as given to the schedule's own."""

from __future__ import annotations

from itertools import pairwise

import pytest

from iossim import api
from iossim.report.explanation import rewriting_dot, rewriting_lines
from iossim.tasks.explain_rewriting import explain_rewriting


@pytest.mark.parametrize("scheduler", ["sequential", "ios-both"])
def test_costs_lead_from_the_network_as_given_to_the_schedule(scheduler: str) -> None:
    prices = api.cost_model("simulator", "v100-sxm2")
    given = api.optimize("ios_sample", None, scheduler=scheduler, cost_model=prices)
    found = api.optimize("ios_sample", None, scheduler=scheduler, cost_model=prices, rewrite="default")
    steps = explain_rewriting(found, prices)
    assert steps
    assert steps[0].before_us == pytest.approx(given.latency_us)
    assert steps[-1].after_us == pytest.approx(found.latency_us)
    assert all(one.after_us == other.before_us for one, other in pairwise(steps))
    for step in steps:
        assert step.saves_us == pytest.approx((step.before_us or 0) - (step.after_us or 0))
        names = {node.name for node in step.before.nodes}
        assert step.before.nodes != step.after.nodes
        assert names or step.after.nodes
    drawn = rewriting_dot("ios_sample", steps)
    assert drawn.count("subgraph cluster_step") == 3 * len(steps)
    assert drawn.count("{") == drawn.count("}")


def test_without_prices_and_without_a_rewriting() -> None:
    found = api.optimize("ios_sample", "v100-sxm2", rewrite="metaflow")
    steps = explain_rewriting(found, None)
    assert [(step.before_us, step.saves_us) for step in steps] == [(None, None)] * len(steps)
    lines = list(rewriting_lines(steps, whole=True))
    assert lines[0] == "the network was rewritten by 1 substitution"
    assert lines[1] == "step 1: merge-relus-of-concat"
    assert "  - b.relu: relu(b.conv) -> fp32[1x750x15x15]" in lines
    assert "  + b.relu~1: relu(concat.concat~1) -> fp32[1x1125x15x15]" in lines
    assert explain_rewriting(api.optimize("ios_sample", "v100-sxm2", scheduler="greedy"), None) == ()
