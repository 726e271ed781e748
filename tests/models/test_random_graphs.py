"""Watts-Strogatz graphs, edge lists, and the order in which a randomly wired stage lists its nodes."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from iossim.base.errors import ModelError, OptionError
from iossim.models.random_graphs import RandomGraph, read_edge_list, watts_strogatz


def components(graph: RandomGraph) -> int:
    groups = [{node} for node in range(graph.count)]
    for edge in graph.edges:
        touched = [group for group in groups if group & set(edge)]
        groups = [group for group in groups if group not in touched] + [set().union(*touched)]
    return len(groups)


@given(st.integers(5, 40), st.floats(0, 1), st.integers(0, 1000))
def test_watts_strogatz_graphs_are_connected_and_keep_their_edges(count: int, probability: float, seed: int) -> None:
    graph = watts_strogatz(count, 4, probability, str(seed))
    assert len(graph.edges) == 2 * count
    assert len(set(graph.edges)) == len(graph.edges)
    assert all(0 <= low < high < count for low, high in graph.edges)
    assert components(graph) == 1
    assert graph == watts_strogatz(count, 4, probability, str(seed))


def test_without_rewiring_it_is_the_ring() -> None:
    ring = {(min(node, far % 9), max(node, far % 9)) for node in range(9) for far in (node + 1, node + 2)}
    assert watts_strogatz(9, 4, 0.0, "any").edges == tuple(sorted(ring))


def test_rewiring_moves_about_the_share_of_edges_that_it_should() -> None:
    count = 400
    ring = set(watts_strogatz(count, 4, 0.0, "").edges)
    kept = len(ring & set(watts_strogatz(count, 4, 0.75, "0").edges)) / len(ring)
    assert kept == pytest.approx(0.25, abs=0.06)  # three standard deviations of 800 draws


def test_default_graphs_do_not_change() -> None:
    """A saved schedule names the default graphs by their seed alone."""
    graph = watts_strogatz(16, 4, 0.75, "0:2")
    assert graph.edges[:8] == ((0, 1), (0, 3), (0, 5), (0, 12), (0, 14), (1, 2), (1, 3), (1, 8))


@pytest.mark.parametrize(("count", "neighbours", "probability"), [(4, 4, 0.5), (9, 3, 0.5), (9, 4, 1.5), (9, 0, 0.5)])
def test_impossible_graphs_are_refused(count: int, neighbours: int, probability: float) -> None:
    with pytest.raises(OptionError, match="no Watts-Strogatz graph"):
        watts_strogatz(count, neighbours, probability, "0")


@given(st.integers(1, 12), st.data())
def test_depth_first_order_is_topological(count: int, data: st.DataObject) -> None:
    pairs = [(low, high) for high in range(count) for low in range(high)]
    edges = data.draw(st.sets(st.sampled_from(pairs))) if pairs else set()
    graph = RandomGraph(count, tuple(sorted(edges)))
    order = graph.depth_first_order()
    place = {node: index for index, node in enumerate(order)}
    assert sorted(order) == list(range(count))
    assert all(place[low] < place[high] for low, high in edges)


def test_edge_list_is_read_with_edges_from_low_to_high(tmp_path: Path) -> None:
    path = tmp_path / "graph.txt"
    path.write_text("4\n3\n2 0\n\n0 1\n1 3\n")
    assert read_edge_list(path) == RandomGraph(4, ((0, 1), (0, 2), (1, 3)))


@pytest.mark.parametrize(
    ("text", "line", "reason"),
    [
        ("4\n1\n0 x\n", 3, "not 2 whole numbers"),
        ("4\n1\n0 1 2\n", 3, "not 2 whole numbers"),
        ("four\n1\n0 1\n", 1, "not a whole number"),
        ("4\n1\n\n0 4\n", 4, "numbered 0 to 3"),
        ("4\n1\n-1 2\n", 3, "numbered 0 to 3"),
        ("4\n1\n2 2\n", 3, "to itself"),
        ("4\n2\n0 1\n1 0\n", 4, "twice"),
        ("4\n2\n0 1\n", 2, "2 edges are announced, 1 follow"),
        ("0\n0\n", 1, "at least one"),
    ],
)
def test_a_malformed_edge_list_is_named_with_its_line(tmp_path: Path, text: str, line: int, reason: str) -> None:
    path = tmp_path / "bad.txt"
    path.write_text(text)
    with pytest.raises(ModelError, match=reason) as caught:
        read_edge_list(path)
    assert f"{path}, line {line}:" in str(caught.value)


def test_an_edge_list_that_is_no_text(tmp_path: Path) -> None:
    path = tmp_path / "bad.txt"
    path.write_text("3\n")
    with pytest.raises(ModelError, match="no header"):
        read_edge_list(path)
    path.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ModelError, match="is not text"):
        read_edge_list(path)
    with pytest.raises(ModelError, match="cannot read edge list"):
        read_edge_list(tmp_path / "missing.txt")
