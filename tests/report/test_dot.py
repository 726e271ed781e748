"""The DOT text parses, holds every unit and edge once, and a cluster for each stage."""

from __future__ import annotations

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from random_networks import make_stage, one_block, random_network, random_schedule

from iossim.ir.builder import GraphBuilder
from iossim.report.schedule_formats import dot

TOKEN = re.compile(r'\s*("(?:[^"\\]|\\.)*"|[A-Za-z_][A-Za-z0-9_]*|-?\d+(?:\.\d+)?|->|[{}\[\];=,])', re.DOTALL)


class Parsed:
    """A recursive-descent parser of the part of the DOT grammar that is used, which fails on anything else."""

    def __init__(self, text: str) -> None:
        self.tokens: list[str] = []
        position = 0
        while text[position:].strip():
            match = TOKEN.match(text, position)
            assert match, f"no token at {text[position : position + 30]!r}"
            self.tokens.append(match[1])
            position = match.end()
        self.nodes: dict[str, dict[str, str]] = {}
        self.edges: list[tuple[str, str]] = []
        self.clusters: dict[str, list[str]] = {}
        assert self.take() == "digraph"
        self.name = self.take()
        self.statements(None)
        assert not self.tokens

    def take(self, expected: str | None = None) -> str:
        token = self.tokens.pop(0)
        assert expected is None or token == expected
        return token

    def statements(self, cluster: str | None) -> None:
        self.take("{")
        while self.tokens[0] != "}":
            first = self.take()
            if first == "subgraph":
                name = self.take()
                assert name.startswith("cluster")
                assert name not in self.clusters
                self.clusters[name] = []
                self.statements(name)
                continue
            if self.tokens[0] == "->":
                self.take()
                self.edges.append((first, self.take()))
            elif self.tokens[0] == "=":
                self.take()
                self.take()
            else:
                attributes = self.attributes()
                if first not in ("node", "edge"):
                    assert first not in self.nodes
                    self.nodes[first] = attributes
                    if cluster:
                        self.clusters[cluster].append(first)
            self.take(";")
        self.take("}")

    def attributes(self) -> dict[str, str]:
        found = {}
        self.take("[")
        while True:
            key = self.take()
            self.take("=")
            found[key] = self.take()
            if self.take() == "]":
                return found


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 2**20), st.integers(0, 2**20))
def test_every_unit_edge_and_stage_is_drawn_once(network: int, schedule: int) -> None:
    drawn = random_network(network)
    plan = random_schedule(drawn, schedule)
    parsed = Parsed(dot(drawn, plan))
    units = {f"u{index}" for index in range(len(drawn.units))}
    assert set(parsed.nodes) == units | {"in0"}
    between = [(f"u{before}", f"u{after}") for after, reads in enumerate(drawn.predecessors) for before in reads]
    assert sorted(edge for edge in parsed.edges if edge[0] != "in0") == sorted(between)
    assert len(parsed.clusters) == len(plan.stages)
    for stage, cluster in zip(plan.stages, parsed.clusters.values(), strict=True):
        assert cluster == [f"u{drawn.unit_index[name]}" for name in stage.units]
        fills = {parsed.nodes[node]["fillcolor"] for node in cluster}
        assert len(fills) == min(len(stage.groups), 8)


@pytest.mark.parametrize("name", ['a "quoted" name', "back\\slash", "line\nend", "semi;colon {brace} -> é"])
def test_names_are_escaped(name: str) -> None:
    b = GraphBuilder(name)
    with b.block(name):
        y = b.conv(b.input("x", (1, 1, 1, 1)), 1, name=name)
    network = b.network([y])
    parsed = Parsed(dot(network, one_block(network, make_stage([[name]]))))
    assert set(parsed.nodes) == {"in0", "u0"}
    unescaped = re.sub(r"\\(.)", lambda match: {"n": "\n"}.get(match[1], match[1]), parsed.nodes["u0"]["label"][1:-1])
    assert unescaped == f"{name}\nConv\nfp32[1x1x1x1]"


def test_without_a_schedule_there_are_no_clusters() -> None:
    network = random_network(3)
    parsed = Parsed(dot(network))
    assert len(parsed.nodes) == len(network.units) + 1
    assert not parsed.clusters
