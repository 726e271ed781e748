"""Random graphs in which rules apply: the source of a rule at random shapes, with ops around it, and what it makes read elsewhere."""

from collections.abc import Iterable, Sequence
from pathlib import Path
from random import Random

import numpy as np
import pytest
from checked_execution import execute

import iossim
from iossim.backends.numpy_reference.backend import evaluate_graph
from iossim.execution.lower import lower_schedule
from iossim.execution.memory import plan_memory
from iossim.ir.constants import ArrayConstant, Constant
from iossim.ir.graph import Graph, Node
from iossim.ir.network import Network
from iossim.ir.op import Array, Op
from iossim.ir.ops.nary import Add, Mul
from iossim.ir.ops.slice import Concat
from iossim.ir.ops.unary import Relu
from iossim.ir.types import TensorType
from iossim.models.onnx.export import write_onnx
from iossim.proving.refute import evaluate_exact, evaluate_real, is_exact_graph, random_elements
from iossim.transforms.rewriting.expression import IsConstant
from iossim.transforms.rewriting.instance import Placed
from iossim.transforms.rewriting.rule import Rule


def random_graph(placed: Sequence[Placed], seed: int) -> Graph:
    """A graph around the sources of the rules, one after another."""
    return _Surroundings(Random(f"surroundings:{seed}")).graph(placed)


def must_be_constant(rule: Rule) -> set[str]:
    """The tensors that a condition of the rule says to be constants."""
    return {part.tensor for each in rule.conditions for part in each.walk() if isinstance(part, IsConstant)}


class _Surroundings:
    def __init__(self, random: Random) -> None:
        self._random = random
        self._types: dict[str, TensorType] = {}
        self._inputs: dict[str, TensorType] = {}
        self._constants: dict[str, Constant] = {}
        self._nodes: list[Node] = []

    def graph(self, placed: Iterable[Placed]) -> Graph:
        for number, each in enumerate(placed):
            self._add_source(each, f"p{number}")
        values = [value for node in self._nodes for value in node.outputs]
        for value in values:
            if self._chance(0.3):
                self._add_reader(value)
        read = {value for node in self._nodes for value in node.inputs}
        made = [value for node in self._nodes for value in node.outputs]
        outputs = [value for value in made if value not in read or self._chance(0.15)]
        return Graph.create(self._inputs, outputs, self._nodes, self._constants)

    def _add_source(self, placed: Placed, prefix: str) -> None:
        constants = must_be_constant(placed.rule)
        source = placed.source
        stands_for: dict[str, str] = {}
        variances = {node.inputs[4] for node in source.nodes if node.op.kind == "batch_norm"}
        for place, name in enumerate(source.inputs):
            value_type = source.types[name]
            if name in variances:
                stands_for[name] = self._new_constant(value_type, 1)
            elif name in constants or (place > 0 and self._chance(0.5)):
                stands_for[name] = self._constant(value_type)
            else:
                stands_for[name] = self._value(value_type)
        for name, constant in source.constants.items():
            stands_for[name] = f"{prefix}.{name}"
            self._constants[stands_for[name]] = constant
            self._types[stands_for[name]] = constant.type
        for node in source.nodes:
            stands_for.update({value: f"{prefix}.{value}" for value in node.outputs})
            inputs = tuple(stands_for[value] for value in node.inputs)
            outputs = tuple(stands_for[value] for value in node.outputs)
            self._nodes.append(Node(f"{prefix}.{node.name}", node.op, inputs, outputs))
            self._types.update({stands_for[value]: source.types[value] for value in node.outputs})

    def _value(self, value_type: TensorType) -> str:
        """Something that is computed: one of those that there are, or a new one."""
        alike = [name for name, each in self._types.items() if each == value_type and name not in self._constants]
        if alike and self._chance(0.4):
            return self._random.choice(alike)
        name = f"in{len(self._inputs)}"
        self._inputs[name] = self._types[name] = value_type
        return self._add(Relu(), [name]) if self._chance(0.4) else name

    def _constant(self, value_type: TensorType) -> str:
        alike = [name for name in self._constants if self._types[name] == value_type]
        if alike and self._chance(0.2):
            return self._random.choice(alike)
        return self._new_constant(value_type, -3)

    def _new_constant(self, value_type: TensorType, least: int) -> str:
        """Small whole numbers: what is computed of them is exact."""
        name = f"w{len(self._constants)}"
        drawn = np.random.default_rng(self._random.randrange(2**32)).integers(least, 4, value_type.shape)
        self._constants[name] = ArrayConstant(drawn.astype(value_type.dtype.numpy))
        self._types[name] = value_type
        return name

    def _add_reader(self, value: str) -> str:
        """An op that reads a value, and maybe others."""
        value_type = self._types[value]
        alike = [name for name, each in self._types.items() if each == value_type]
        op, inputs = self._random.choice(
            [
                (Relu(), [value]),
                (Mul(), [value, value]),
                (Add(), [value, self._random.choice(alike)]),
                (Concat(len(value_type.shape) - 1), [self._random.choice(alike), value]),
            ]
            if value_type.shape
            else [(Relu(), [value])]
        )
        return self._add(op, inputs)

    def _add(self, op: Op, inputs: Sequence[str]) -> str:
        name = f"n{len(self._nodes)}"
        (self._types[name],) = op.infer([self._types[each] for each in inputs])
        self._nodes.append(Node(name, op, tuple(inputs), (name,)))
        return name

    def _chance(self, probability: float) -> bool:
        return self._random.random() < probability


def same_outputs(before: Graph, after: Graph, seed: int, tolerance: float = 1e-9) -> bool:
    """Whether two graphs compute the same: exactly over a prime field, or in float64 where that has an op not."""
    random = np.random.default_rng(seed)
    if is_exact_graph(before, after):
        given = {name: random_elements(random, before.types[name].shape) for name in before.inputs}
        if _equal(evaluate_exact(before, given), evaluate_exact(after, given), 0.0):
            return True  # otherwise activations of constants, which the field takes for others, may have been folded
    given = {name: random.standard_normal(before.types[name].shape) for name in before.inputs}
    # A batch norm is computed in fp32.
    tolerance = 1e-5 if "batch_norm" in before.of_kind else tolerance
    return _equal(evaluate_real(before, given), evaluate_real(after, given), tolerance)


def _equal(some: dict[str, Array], others: dict[str, Array], tolerance: float) -> bool:
    if some.keys() != others.keys():
        return False
    return all(
        some[name].shape == others[name].shape
        and np.allclose(some[name], others[name], rtol=tolerance, atol=tolerance * (1 + np.abs(some[name]).max()))
        for name in some
    )


def check_outputs(before: Network, after: Network, device: str, folder: Path) -> None:
    """A changed network computes the same by NumPy, by NumPy as scheduled in the device's fastest way, and by ONNX Runtime."""
    onnxruntime = pytest.importorskip("onnxruntime")
    random = np.random.default_rng(0)
    given = {name: random.standard_normal(before.graph.types[name].shape, np.float32) for name in before.graph.inputs}
    expected = evaluate_graph(before.graph, given)
    plan = plan_memory(lower_schedule(iossim.optimize(after, device, engine="graph"), after, in_place=True))
    write_onnx(after.graph, folder / "model.onnx")
    session = onnxruntime.InferenceSession(folder / "model.onnx", providers=["CPUExecutionProvider"])
    ran = dict(zip(after.graph.outputs, session.run(list(after.graph.outputs), given), strict=True))
    for found in (evaluate_graph(after.graph, given), execute(plan, after, given, seed=1), ran):
        for name, value in expected.items():
            assert np.abs(found[name] - value).max() <= 1e-4 * np.abs(value).max()
