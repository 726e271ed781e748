"""Training graphs in micro-batches: gradients of weights add up, in plans that are proved, from nothing on."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from divided import divided
from plan_contents import check_contents
from random_networks import random_inputs

from iossim import api
from iossim.backends.numpy_reference.execute import evaluate_graph, execute
from iossim.base.errors import ScheduleError
from iossim.execution.happens_before import check_happens_before
from iossim.execution.lower import lower_schedule
from iossim.execution.memory import plan_memory
from iossim.execution.plan import Launch, Plan
from iossim.ir.builder import GraphBuilder
from iossim.ir.network import Network
from iossim.ir.ops.matmul import Gemm
from iossim.ir.ops.pool import GlobalAveragePool
from iossim.ir.ops.reduce import Reduce
from iossim.ir.ops.reshape import Reshape
from iossim.microbatching.divided_blocks import divide_blocks
from iossim.microbatching.divisible import divisible, unit_part
from iossim.microbatching.training_pass import training_network


def trained(batch: int = 4) -> Network:
    """Two convolutions, pooling and a classifier, with their gradients. As many channels as images: shapes alone tell nothing."""
    b = GraphBuilder("trained")
    x = b.input("x", (batch, 3, 9, 9))
    with b.block("maps"):
        y = b.conv(x, batch, 3, padding=1, name="first")
        y = b.conv(y, batch, 3, stride=2, name="second")
    with b.block("head"):
        flat = b.add(Reshape((batch, batch)), b.add(GlobalAveragePool(), y))
        b.add(Gemm(), flat, b.constant("weight", (batch, 5)), b.constant("bias", (5,)), name="classes")
    return training_network(b.network(["classes"]))


def planned(network: Network) -> Plan:
    found = api.optimize(network, "v100-sxm2", scheduler="ios-parallel")
    return plan_memory(lower_schedule(found, network, in_place=True))


@pytest.mark.parametrize("count", [2, 4])
def test_gradients_are_those_of_the_whole_batch(count: int) -> None:
    network = trained()
    assert all(divisible(network, block, count) for block in network.blocks)
    divided = divide_blocks(network, {block.name: count for block in network.blocks})
    assert divided.graph.outputs == network.graph.outputs
    forward = {unit.name for unit in network.units if "backward" not in unit.name}
    ordered = {names[0].split(".1of")[0] for names in divided.interchangeable}
    assert ordered <= forward, "sums order the copies where there are any"
    plan = planned(divided)
    check_happens_before(plan)
    check_contents(plan, divided)
    inputs = random_inputs(network)
    found = execute(plan, divided, inputs)
    for name, expected in evaluate_graph(network.graph, inputs).items():
        np.testing.assert_allclose(found[name], expected, rtol=1e-5, atol=1e-5 * np.abs(expected).max(), err_msg=name)


def relaunched(plan: Plan, old: Launch, new: Launch) -> Plan:
    return replace(plan, commands=tuple(new if command is old else command for command in plan.commands))


def test_a_wrong_beta_is_caught() -> None:
    network = trained()
    plan = planned(divided := divide_blocks(network, {block.name: 2 for block in network.blocks}))
    later = [launch for launch in plan.launches if launch.adds_to is not None]
    assert len(later) == 2, "the second micro-batch of each filter: beta is 1"
    for launch in later:
        # Beta 0: what the first micro-batch left is written over.
        forgetful = replace(launch, reads=launch.reads[:2], adds_to=None)
        with pytest.raises(ScheduleError, match="reads 2 buffers and writes 1, not 3 and 1"):
            check_contents(relaunched(plan, launch, forgetful), divided)
    # Beta 1 of the first: it adds to what nothing has written.
    second = later[0]
    first = next(each for each in plan.launches if each.writes == (second.adds_to,))
    greedy = replace(first, reads=(*first.reads, second.adds_to), adds_to=second.adds_to)
    with pytest.raises(ScheduleError, match="which nothing has written before"):
        check_happens_before(relaunched(plan, first, greedy))


def test_what_is_no_sum_of_images_is_not_divided() -> None:
    b = GraphBuilder("sums")
    x = b.input("x", (4, 6))
    largest = b.add(Reduce("max", (0,), keepdims=True), x, name="largest")
    total = b.add(Reduce("sum", (0,), keepdims=True), x, name="total")
    b.add(Gemm(alpha=2.0, trans_a=True), x, x, name="squares")
    b.add(Gemm(beta=2.0, trans_a=True), x, x, name="weighed")
    network = b.network([largest, total, "squares", "weighed"])
    sums = {unit.name: unit_part(network, unit, 4, 2) for unit in network.units}
    assert {name for name, part in sums.items() if part is not None and part.sums} == {"total", "squares"}
    assert {name for name, part in sums.items() if part is None} == {"largest", "weighed"}


def test_under_a_limit_gradients_in_micro_batches_are_faster() -> None:
    b = GraphBuilder("wide")
    y = b.input("x", (64, 64, 28, 28))
    with b.block("only"):
        y = b.conv(y, 96, 5, padding=2, name="conv")
    network = training_network(b.network([y]))
    options = api.search_options(workspace_limit="64MiB")
    before = api.optimize(network, "p100-sxm2", options=options)
    found = divided(network, "p100-sxm2", options=options)
    assert found.after_us is not None
    assert found.after_us < before.latency_us
    assert "only.backward" in found.parts
