"""RandWire, large regime (Xie et al., 2019, arXiv:1904.01569, table 1): stages wired by random graphs.

A node sums its predecessors and runs Relu-SepConv; nodes without predecessors have stride 2. Each stage ends with the
sum of its sinks. By default the graphs are WS(n, 4, 0.75) drawn from the seeds ``"{seed}:{stage}"``; a folder of edge
lists (:func:`iossim.models.random_graphs.read_edge_list`) replaces them: its ``.txt`` files in the order of their
names, one per stage.
"""

from __future__ import annotations

from pathlib import Path

from iossim.base.errors import ModelError
from iossim.ir.builder import GraphBuilder
from iossim.models.catalogue import BuildOptions, ZooModel
from iossim.models.layers import conv, global_average_pool, join, relu, relu_sepconv
from iossim.models.random_graphs import RandomGraph, read_edge_list, watts_strogatz

#: Nodes and channels of the random stages, which the paper numbers 2 to 5.
_STAGES = ((16, 154), (32, 308), (32, 616), (32, 1232))
_NEIGHBOURS, _PROBABILITY = 4, 0.75


def build(b: GraphBuilder, x: str, options: BuildOptions) -> str:
    if options.graphs is None:
        graphs = [
            watts_strogatz(nodes, _NEIGHBOURS, _PROBABILITY, f"{options.seed}:{stage}")
            for stage, (nodes, _) in enumerate(_STAGES, 2)
        ]
    else:
        graphs = _read_folder(options.graphs)
    with b.block("stage1"):
        x = conv(b, "stage1", x, _STAGES[0][1] // 2, 3, stride=2, padding=1)
    for stage, (graph, (_, channels)) in enumerate(zip(graphs, _STAGES, strict=True), 2):
        x = _stage(b, f"stage{stage}", x, graph, channels)
    with b.block("tail"):
        x = relu(b, "tail.activation", x)
        x = conv(b, "tail.conv", x, 1280)
        return global_average_pool(b, "tail.avgpool", x)


def _stage(b: GraphBuilder, name: str, x: str, graph: RandomGraph, channels: int) -> str:
    with b.block(name):
        made: dict[int, str] = {}
        for node in graph.depth_first_order():
            terms = [made[before] for before in graph.predecessors[node]]
            stride = 1 if terms else 2
            made[node] = relu_sepconv(b, f"{name}.node{node}", terms or [x], channels, 3, stride)
        return join(b, f"{name}.sum", [tuple(made[sink] for sink in graph.sinks)])


def _read_folder(folder: Path) -> list[RandomGraph]:
    if not folder.is_dir():
        raise ModelError(f"no folder {str(folder)!r} of edge lists; give one with {len(_STAGES)} .txt files")
    files = sorted(path for path in folder.iterdir() if path.suffix == ".txt")
    if len(files) != len(_STAGES):
        raise ModelError(
            f"folder {str(folder)!r} has {len(files)} edge lists (.txt files); randwire needs {len(_STAGES)}, one a "
            "random stage, in the order of their names"
        )
    return [read_edge_list(path) for path in files]


MODELS = (
    ZooModel(
        "randwire", "RandWire, large regime: four stages wired by Watts-Strogatz graphs", (3, 224, 224), build, True
    ),
)
