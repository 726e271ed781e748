"""A recurrent network (Hochreiter and Schmidhuber, 1997): two layers of 512, a hundred steps, each with its own ops.

The inputs' contribution to a gate, for all steps, is one product. A step is the four gates,
the new cell state, and its output, one unit each.
"""

from __future__ import annotations

from iossim.ir.builder import GraphBuilder
from iossim.ir.ops.functions import Unary
from iossim.ir.ops.matmul import MatMul
from iossim.ir.ops.nary import Add, Mul
from iossim.ir.ops.slice import Concat, Slice
from iossim.ir.ops.unary import Sigmoid
from iossim.models.catalogue import ZooModel
from iossim.models.transformer_layers import linear

_LAYERS = 2
_GATES = ("input", "forget", "candidate", "output")


def build(b: GraphBuilder, x: str) -> str:
    for layer in range(_LAYERS):
        x = _layer(b, f"layer{layer}", x)
    return x


def _layer(b: GraphBuilder, name: str, x: str) -> str:
    _, steps, width = b.types[x].shape
    with b.block(f"{name}.inputs"):
        seen = {gate: linear(b, f"{name}.{gate}.inputs", x, width) for gate in _GATES}
    weights = {gate: b.constant(f"{name}.{gate}.recurrent", (width, width)) for gate in _GATES}
    hidden = cell = ""  # both begin as zeros
    shown: list[str] = []
    for step in range(steps):
        own = f"{name}.step{step}"
        with b.block(own):
            gates = {
                gate: _gate(b, f"{own}.{gate}", gate == "candidate", seen[gate], weights[gate], hidden, step)
                for gate in _GATES
                if cell or gate != "forget"
            }
            with b.unit(f"{own}.cell", "Cell"):
                new = b.add(Mul(), gates["input"], gates["candidate"], name=f"{own}.new")
                if cell:
                    kept = b.add(Mul(), gates["forget"], cell, name=f"{own}.kept")
                    new = b.add(Add(), kept, new, name=f"{own}.state")
                cell = new
            with b.unit(f"{own}.hidden", "Hidden"):
                squashed = b.add(Unary("tanh"), cell, name=f"{own}.tanh")
                hidden = b.add(Mul(), gates["output"], squashed, name=f"{own}.shown")
            shown.append(hidden)
    with b.block(f"{name}.sequence"), b.unit(f"{name}.sequence", "Concat"):
        return b.add(Concat(1), *shown, name=f"{name}.sequence.join")


def _gate(b: GraphBuilder, name: str, squashes: bool, seen: str, weight: str, hidden: str, step: int) -> str:
    with b.unit(name, "Gate"):
        y = b.add(Slice((step,), (step + 1,), (1,), (1,)), seen, name=f"{name}.at")
        if hidden:
            y = b.add(Add(), y, b.add(MatMul(), hidden, weight, name=f"{name}.product"), name=f"{name}.sum")
        return b.add(Unary("tanh") if squashes else Sigmoid(), y, name=f"{name}.gate")


MODELS = (
    ZooModel(
        "lstm",
        "LSTM, two layers of 512, 100 steps",
        (100, 512),
        build,
        input_name="sequence",
        axes="batch x steps x width",
    ),
)
