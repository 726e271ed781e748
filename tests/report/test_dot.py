"""The DOT text parses, holds every unit and edge once, and a cluster for each stage."""

from __future__ import annotations

import re
from dataclasses import dataclass
from itertools import pairwise

import pydot
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from random_networks import make_stage, one_block, random_network, random_schedule, random_streams

from iossim.ir.builder import GraphBuilder
from iossim.report.schedule_formats import dot


@dataclass(frozen=True)
class Parsed:
    """Nodes with their attributes, edges, and the nodes of each cluster, as Graphviz's grammar has them."""

    nodes: dict[str, dict[str, str]]
    edges: list[tuple[str, str]]
    clusters: dict[str, list[str]]

    @staticmethod
    def of(text: str) -> Parsed:
        (graph,) = pydot.graph_from_dot_data(text)
        clusters = {each.get_name(): _nodes(each) for each in graph.get_subgraphs()}
        several = [_nodes(graph), *clusters.values()]
        nodes = {name: attributes for one in several for name, attributes in one.items()}
        assert len(nodes) == sum(map(len, several)), "a node is there once"
        assert len(clusters) == len(graph.get_subgraphs())
        edges = [(edge.get_source(), edge.get_destination()) for edge in graph.get_edges()]
        return Parsed(nodes, edges, {name: list(one) for name, one in clusters.items()})


def _nodes(graph: pydot.Graph) -> dict[str, dict[str, str]]:
    return {
        node.get_name(): node.get_attributes()
        for node in graph.get_nodes()
        if node.get_name() not in ("node", "edge", "graph", '"\\n"')
    }


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 2**20), st.integers(0, 2**20))
def test_every_unit_edge_and_stage_is_drawn_once(network: int, schedule: int) -> None:
    drawn = random_network(network)
    plan = random_schedule(drawn, schedule)
    parsed = Parsed.of(dot(drawn, plan))
    units = {f"u{index}" for index in range(len(drawn.units))}
    assert set(parsed.nodes) == units | {"in0"}
    between = [(f"u{before}", f"u{after}") for after, reads in enumerate(drawn.predecessors) for before in reads]
    assert sorted(edge for edge in parsed.edges if edge[0] != "in0") == sorted(between)
    assert len(parsed.clusters) == len(plan.stages)
    for stage, cluster in zip(plan.stages, parsed.clusters.values(), strict=True):
        assert cluster == [f"u{drawn.unit_index[name]}" for name in stage.units]
        fills = {parsed.nodes[node]["fillcolor"] for node in cluster}
        assert len(fills) == min(len(stage.groups), 8)


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 2**20), st.integers(0, 2**20))
def test_every_stream_order_and_wait_is_drawn(network: int, schedule: int) -> None:
    drawn = random_network(network)
    plan = random_streams(drawn, schedule)
    parsed = Parsed.of(dot(drawn, plan))
    of = {unit.name: f"u{index}" for index, unit in enumerate(drawn.units)}
    assert set(parsed.nodes) == {*of.values(), "in0"}
    for own, cluster in zip(plan.streams, parsed.clusters.values(), strict=True):
        assert cluster == [of[launch.units[0]] for launch in own]
    wanted = [(f"u{before}", f"u{after}") for after, reads in enumerate(drawn.predecessors) for before in reads]
    for own in plan.streams:
        wanted += [(of[before.units[0]], of[launch.units[0]]) for before, launch in pairwise(own)]
        wanted += [(of[unit], of[launch.units[0]]) for launch in own for unit in launch.after]
    assert sorted(edge for edge in parsed.edges if edge[0] != "in0") == sorted(wanted)


@pytest.mark.parametrize("name", ['a "quoted" name', "back\\slash", "line\nend", "semi;colon {brace} -> é"])
def test_names_are_escaped(name: str) -> None:
    b = GraphBuilder(name)
    with b.block(name):
        y = b.conv(b.input("x", (1, 1, 1, 1)), 1, name=name)
    network = b.network([y])
    parsed = Parsed.of(dot(network, one_block(network, make_stage([[name]]))))
    assert set(parsed.nodes) == {"in0", "u0"}
    unescaped = re.sub(r"\\(.)", lambda match: {"n": "\n"}.get(match[1], match[1]), parsed.nodes["u0"]["label"][1:-1])
    assert unescaped == f"{name}\nConv\nfp32[1x1x1x1]"


def test_without_a_schedule_there_are_no_clusters() -> None:
    network = random_network(3)
    parsed = Parsed.of(dot(network))
    assert len(parsed.nodes) == len(network.units) + 1
    assert not parsed.clusters
