"""Recurrent layers (LSTM, GRU, RNN): one product for all time steps and one small product for each step.

Operands are ONNX's: ``x [T, N, I]``, ``weight [D, G * H, I]``, ``recurrence [D, G * H, H]``, then, if present,
``bias [D, 2 * G * H]`` and the initial states ``[D, N, H]``, for ``T`` steps, ``N`` sequences, ``D`` directions,
``G`` gates and ``H`` hidden features. Outputs are all hidden states ``[T, D, N, H]``, the last hidden state ``[D, N,
H]`` and, for the LSTM, the last cell state. With ``batch_first`` (ONNX ``layout`` 1) sequences are the first axis of
all but the weights.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Self

import numpy as np

from iossim.ir.onnx_spelling import OnnxNode
from iossim.ir.op import Array, Op, as_float32, require
from iossim.ir.ops.unary import logistic
from iossim.ir.types import TensorType

_DIRECTIONS = ("forward", "reverse", "bidirectional")
#: The positions of a node's inputs after x, weight and recurrence: optional operands, and lengths between them.
_PLACES, _LENGTHS = {"bias": 3, "state": 5, "cell": 6, "peepholes": 7}, 4
#: Operations of a gate per hidden feature: two additions, an activation of four, a product.
_GATE_FLOPS = 7

_States = list[Array]


@dataclass(frozen=True)
class Recurrent(Op, onnx_names="hidden=hidden_size direction batch_first=layout", may_leave_out_outputs=True):
    """Base of the recurrent layers. ``operands`` lists the optional operands that are present, in ONNX's order."""

    gates: ClassVar[int]
    states: ClassVar[int] = 1
    activations: ClassVar[tuple[str, ...]]

    hidden: int
    direction: str = "forward"
    batch_first: bool = False
    operands: tuple[str, ...] = ()

    def infer(self, inputs: Sequence[TensorType]) -> tuple[TensorType, ...]:
        require(len(inputs) == 3 + len(self.operands), f"needs {3 + len(self.operands)} inputs, not {len(inputs)}")
        require(self.direction in _DIRECTIONS, f"has no direction {self.direction!r}; known: {', '.join(_DIRECTIONS)}")
        x, weight, recurrence = inputs[:3]
        require(len(x.shape) == 3, f"its input {x} is no batch of sequences")
        n, t = (x.shape[0], x.shape[1]) if self.batch_first else (x.shape[1], x.shape[0])
        d, h = self.directions, self.hidden
        require(h > 0, f"has {h} hidden numbers; it needs one at least")
        wanted = {"weight": (d, self.gates * h, x.shape[2]), "recurrence": (d, self.gates * h, h)}
        for name, value in (("weight", weight), ("recurrence", recurrence)):
            require(value.shape == wanted[name], f"its {name} {value} does not have the shape {list(wanted[name])}")
        state = (n, d, h) if self.batch_first else (d, n, h)
        shapes = {"bias": (d, 2 * self.gates * h), "state": state, "cell": state, "peepholes": (d, 3 * h)}
        for name, value in zip(self.operands, inputs[3:], strict=True):
            require(value.shape == shapes.get(name), f"its {name} {value} does not have the shape {shapes.get(name)}")
        every = (n, t, d, h) if self.batch_first else (t, d, n, h)
        return tuple(TensorType(shape, x.dtype) for shape in (every, *[state] * self.states))

    @property
    def directions(self) -> int:
        return 2 if self.direction == "bidirectional" else 1

    def multiply_adds(self, inputs: Sequence[TensorType], outputs: Sequence[TensorType]) -> int:
        rows = inputs[0].shape[0] * inputs[0].shape[1]
        return rows * self.directions * self.gates * self.hidden * (inputs[0].shape[2] + self.hidden)

    def flops(self, inputs: Sequence[TensorType], outputs: Sequence[TensorType]) -> int:
        gates = _GATE_FLOPS * self.gates * outputs[0].elements
        return 2 * self.multiply_adds(inputs, outputs) + gates

    def mixes_images(self, first_varies: bool) -> bool:
        return not self.batch_first  # time is the leading axis

    def evaluate(self, inputs: Sequence[Array]) -> tuple[Array, ...]:
        x, weight, recurrence = (as_float32(array) for array in inputs[:3])
        given = {name: as_float32(array) for name, array in zip(self.operands, inputs[3:], strict=True)}
        x = x.transpose(1, 0, 2) if self.batch_first else x
        steps, batch, _ = x.shape
        every = np.empty((steps, self.directions, batch, self.hidden), dtype=np.float32)
        last: list[_States] = []
        for direction in range(self.directions):
            backwards = self.direction == "reverse" or direction == 1
            bias = given.get("bias", np.zeros((self.directions, 2 * self.gates * self.hidden), np.float32))[direction]
            states = [self._initial(given, name, direction, batch) for name in ("state", "cell")[: self.states]]
            peepholes = given["peepholes"][direction] if "peepholes" in given else None
            cut = self.gates * self.hidden
            for step in reversed(range(steps)) if backwards else range(steps):
                projected = x[step] @ weight[direction].T + bias[:cut]
                states = self._step(projected, recurrence[direction], bias[cut:], states, peepholes)
                every[step, direction] = states[0]
            last.append(states)
        finals = [np.stack([states[which] for states in last]) for which in range(self.states)]
        if self.batch_first:
            every = every.transpose(2, 0, 1, 3)
            finals = [final.transpose(1, 0, 2) for final in finals]
        return tuple(array.astype(inputs[0].dtype, copy=False) for array in (every, *finals))

    def _initial(self, given: dict[str, Array], name: str, direction: int, batch: int) -> Array:
        if name not in given:
            return np.zeros((batch, self.hidden), dtype=np.float32)
        return given[name][:, direction] if self.batch_first else given[name][direction]

    @abstractmethod
    def _step(self, seen: Array, recurrence: Array, bias: Array, states: _States, peepholes: Array | None) -> _States:
        """The states after a step: ``seen [N, G * H]`` is the input's contribution, ``bias`` that of the recurrence."""

    def completed(self, node: OnnxNode) -> Self:
        usual = list(self.activations) * self.directions
        stated = node.attribute("activations", usual)
        given = [each.decode(errors="replace") if isinstance(each, bytes) else str(each) for each in stated]
        refused = [
            "activations of its own" if [each.lower() for each in given] != [each.lower() for each in usual] else "",
            "a clip" if node.attribute("clip") else "",
            "coupled gates" if node.attribute("input_forget", 0) else "",
            "activation parameters" if node.attribute("activation_alpha") else "",
        ]
        if node.has_input(_LENGTHS):
            steps = node.input_type(0).shape[1 if self.batch_first else 0]
            known = node.inputs[_LENGTHS] in node.constants
            same = known and bool((node.constant(_LENGTHS, "sequence lengths") == steps).all())
            refused.append("" if same else "sequences of several lengths")
        node.refuse(any(refused), f"has {', '.join(filter(None, refused))}")
        present = tuple(name for name, place in _PLACES.items() if node.has_input(place))
        return replace(self, hidden=self.hidden or node.input_type(2).shape[-1], operands=present)

    def operands_in(self, node: OnnxNode) -> tuple[str, ...]:
        return (*node.inputs[:3], *(node.inputs[_PLACES[name]] for name in self.operands))

    def onnx_operands(self, inputs: Sequence[str]) -> list[str]:
        """The inputs of the ONNX node, with gaps for absent operands."""
        operands = list(inputs[:3])
        for name, value in zip(self.operands, inputs[3:], strict=True):
            operands += [""] * (_PLACES[name] - len(operands)) + [value]
        return operands


class Lstm(Recurrent, kind="lstm", onnx_types="LSTM", gates=4, states=2, activations=("Sigmoid", "Tanh", "Tanh")):
    """Long short-term memory; gates input, output, forget, cell."""

    def _step(self, seen: Array, recurrence: Array, bias: Array, states: _States, peepholes: Array | None) -> _States:
        hidden, cell = states
        i, o, f, c = np.split(seen + hidden @ recurrence.T + bias, 4, axis=1)
        p_i, p_o, p_f = np.split(peepholes, 3) if peepholes is not None else (0.0, 0.0, 0.0)
        cell_now = logistic(f + p_f * cell) * cell + logistic(i + p_i * cell) * np.tanh(c)
        return [logistic(o + p_o * cell_now) * np.tanh(cell_now), cell_now]


@dataclass(frozen=True)
class Gru(
    Recurrent,
    kind="gru",
    onnx_types="GRU",
    onnx_names="reset_after=linear_before_reset",
    gates=3,
    activations=("Sigmoid", "Tanh"),
):
    """Gated recurrent unit; gates update, reset, hidden.

    With ``reset_after`` (ONNX ``linear_before_reset``) the reset gate scales the recurrent product, else the state.
    """

    reset_after: bool = False

    def _step(self, seen: Array, recurrence: Array, bias: Array, states: _States, peepholes: Array | None) -> _States:
        (hidden,) = states
        cut = 2 * self.hidden
        gates = seen[:, :cut] + hidden @ recurrence[:cut].T + bias[:cut]
        update, reset = np.split(logistic(gates), 2, axis=1)
        if self.reset_after:
            new = np.tanh(seen[:, cut:] + reset * (hidden @ recurrence[cut:].T + bias[cut:]))
        else:
            new = np.tanh(seen[:, cut:] + (reset * hidden) @ recurrence[cut:].T + bias[cut:])
        return [(1 - update) * new + update * hidden]


class Rnn(Recurrent, kind="rnn", onnx_types="RNN", gates=1, activations=("Tanh",)):
    """Simple recurrent layer: ``tanh`` of the sum of both products."""

    def _step(self, seen: Array, recurrence: Array, bias: Array, states: _States, peepholes: Array | None) -> _States:
        return [np.tanh(seen + states[0] @ recurrence.T + bias)]
