"""Ops: one class per kind, with everything the rest of iossim must know about it.

An op class is a frozen dataclass whose fields are its attributes. It defines the types of its outputs, its
work, its NumPy evaluation and its ONNX spelling. Defining a subclass with a ``kind`` registers it; unknown kinds are
looked up in the modules of ``iossim.ir.ops``, so that adding an op is adding one file.
"""

from __future__ import annotations

from abc import ABC
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, dataclass, fields, replace
from enum import Enum
from functools import cache, cached_property
from inspect import get_annotations, signature
from math import inf
from typing import TYPE_CHECKING, Any, ClassVar, Self, TypeVar

import numpy as np
from numpy.typing import NDArray

from iossim.base.errors import GraphError, ModelError, did_you_mean
from iossim.base.registry import Extension, Group, Plugin, modules
from iossim.ir.types import DType, TensorType

if TYPE_CHECKING:
    from iossim.ir.onnx_spelling import OnnxNode

Array = NDArray[Any]
_T = TypeVar("_T")


class Role(Enum):
    """Role of an op in the fusion inside a unit."""

    ANCHOR = "anchor"  #: a call or kernel of its own
    ELEMENTWISE = "elementwise"  #: joins its element-wise neighbours in one kernel
    ACTIVATION = "activation"  #: element-wise on one input
    CONCAT = "concat"  #: a kernel per term
    VIEW = "view"  #: no kernel: the same bytes under another shape


@dataclass(frozen=True, slots=True)
class Work:
    """Work of an op: arithmetic (a multiply-add is two operations) and unique bytes moved."""

    flops: int
    bytes_read: int
    bytes_written: int

    @property
    def bytes(self) -> int:
        return self.bytes_read + self.bytes_written


@dataclass(frozen=True)
class Op(ABC):
    """Base of all op kinds. Their attributes are frozen dataclass fields: ints, floats, strings, bools, tuples.

    Their operands are the parameters of :attr:`output`.
    """

    kind: ClassVar[str] = ""
    #: ONNX operator types that :meth:`from_onnx` understands.
    onnx_types: ClassVar[tuple[str, ...]] = ()
    #: ONNX names of the fields, be they attributes, or parameters that are inputs, in ONNX.
    onnx_names: ClassVar[Mapping[str, str]] = {}
    #: Floating-point operations per element of the first output, besides multiply-adds, and of the first input.
    flops_per_element: ClassVar[int] = 0
    flops_per_read_element: ClassVar[int] = 0
    #: Whether ONNX allows omitting the last outputs.
    may_leave_out_outputs: ClassVar[bool] = False
    #: Whether it accepts one more input, of its output's shape, to accumulate into.
    may_accumulate: ClassVar[bool] = False
    #: The kind of op whose kernels price it on devices without kernels of its own: ``foreign`` moves each byte
    #: once and computes :meth:`flops`; an empty string means none.
    priced_as: ClassVar[str] = ""
    #: The kind of a unit of this op alone, if it is not named after the op's kind.
    own_unit_kind: ClassVar[str] = ""
    role: ClassVar[Role] = Role.ANCHOR
    #: Whether inference libraries fuse element-wise consumers into its epilogue.
    has_epilogue: ClassVar[bool] = False
    #: Whether they fuse element-wise producers of its first operand into its prologue.
    has_prologue: ClassVar[bool] = False
    registry: ClassVar[dict[str, type[Op]]] = {}
    onnx_registry: ClassVar[dict[str, type[Op]]] = {}
    #: Type of the output, or a tuple of several, from the types of the operands; one with a default may be omitted.
    #: Raises GraphError, without the op's name, for operands that do not fit. By default the type of the only one.
    output: ClassVar[Callable[..., TensorType | tuple[TensorType, ...]]] = lambda _, x: x
    #: The single output, from the operands' arrays, whose 16-bit floats are widened to fp32.
    compute: ClassVar[Callable[..., Array]]

    def __init_subclass__(cls, onnx_types: str = "", onnx_names: str = "", **declared: object) -> None:
        """Class keywords set the constants above: ``class Softmax(Op, kind="softmax", onnx_types="Softmax")``.

        ONNX names are separated by spaces; one that differs from its field's is given as ``groups=num_groups``.
        """
        super().__init_subclass__()
        if onnx_types:
            cls.onnx_types = tuple(dict.fromkeys(onnx_types.split()))
        if onnx_names:
            named = (name.partition("=")[0::2] for name in onnx_names.split())
            cls.onnx_names = {**cls.onnx_names, **{field: name or field for field, name in named}}
        for name, value in declared.items():
            if not any(name in get_annotations(base) for base in cls.__mro__):
                raise TypeError(f"{cls.__name__}: ops declare no {name!r}")
            setattr(cls, name, value)
        if cls.kind and cls.evaluate is Op.evaluate and not hasattr(cls, "compute"):
            raise TypeError(f"{cls.__name__}: an op defines compute or evaluate")
        if cls.kind:
            Op.registry[cls.kind] = cls
            for onnx_type in cls.onnx_types:
                Op.onnx_registry[onnx_type] = cls

    def infer(self, inputs: Sequence[TensorType]) -> tuple[TensorType, ...]:
        """Types of the outputs, by :attr:`output`; raises GraphError, without the op's name."""
        try:
            made = self.output(*inputs)
        except TypeError:
            least, most, names = _operands(type(self))
            require(least <= len(inputs) <= most, f"takes {names}, not {len(inputs)} inputs")
            raise
        return made if isinstance(made, tuple) else (made,)

    def making(self, shape: tuple[int, ...]) -> Op | None:
        """The op that produces ``shape``, for an op whose output shape is an attribute; None for any other."""
        return None

    def mixes_images(self, first_varies: bool) -> bool:
        """True if it may combine different positions of its leading dimension, or reorder them.

        ``first_varies``: whether its first input depends on the network's inputs. An op that changes the size of that
        dimension need not report it: its output type shows it.
        """
        return False

    @property
    def sums_images(self) -> bool:
        """True if it sums over the leading dimension: results of parts of a batch then add up to that of the whole."""
        return False

    @property
    def unit_kind(self) -> str:
        """The kind of a unit of this op alone: ``Max-Pool`` of ``max_pool``, unless a class says otherwise."""
        return self.own_unit_kind or "-".join(part.capitalize() for part in self.kind.split("_"))

    @property
    def operation(self) -> str:
        """Name of the computation: the function of an op that applies one of a table, else its kind."""
        return self.kind

    @property
    def channels_first(self) -> Op:
        """The op for NCHW, of an op on images in NHWC; any other itself."""
        return self

    @property
    def is_elementwise(self) -> bool:
        """True if it fuses with its element-wise neighbours into one kernel."""
        return self.role in (Role.ELEMENTWISE, Role.ACTIVATION)

    def permutes(self, inputs: Sequence[TensorType]) -> bool:
        """True if it only reorders or repeats entries along an axis: element-wise kernels may read through it."""
        return False

    def evaluate(self, inputs: Sequence[Array]) -> tuple[Array, ...]:
        """The outputs, computed with NumPy: the definition of the op. :meth:`infer` gives their types.

        By default, :attr:`compute` applied to the inputs, rounded to the first one's element type.
        """
        return (np.asarray(self.compute(*map(widen, inputs))).astype(inputs[0].dtype, copy=False),)

    def multiply_adds(self, inputs: Sequence[TensorType], outputs: Sequence[TensorType]) -> int:
        """Multiply-adds of convolutions and matrix products, excluding bias: the measure of network size in papers."""
        return 0

    def flops(self, inputs: Sequence[TensorType], outputs: Sequence[TensorType]) -> int:
        """Floating-point operations; a multiply-add counts as two. Data movement does none."""
        per_element = self.flops_per_element * outputs[0].elements + self.flops_per_read_element * inputs[0].elements
        return 2 * self.multiply_adds(inputs, outputs) + per_element

    def work(self, inputs: Sequence[TensorType], outputs: Sequence[TensorType]) -> Work:
        """Arithmetic and the bytes of all inputs (including weights) and outputs, each moved once."""
        return Work(
            self.flops(inputs, outputs), sum(value.bytes for value in inputs), sum(value.bytes for value in outputs)
        )

    @classmethod
    def from_onnx(cls, node: OnnxNode) -> tuple[Self, tuple[str, ...]]:
        """The op of an ONNX node, read by ``onnx_names`` and :meth:`completed`, and the inputs that are its operands.

        Raises ModelError for an invalid node, NotCoveredError for one that the op kind does not cover.
        """
        empty, kinds = _declared(cls)
        read = {name: node.parameter(key, kinds[name]) for name, key in cls.onnx_names.items()}
        given = {name: value for name, value in read.items() if value is not None}
        op = cls(**empty | given).completed(node)
        return op, op.operands_in(node)

    def completed(self, node: OnnxNode) -> Self:
        """The op of an ONNX node, from what ``onnx_names`` read; raises as :meth:`from_onnx`."""
        return self

    def operands_in(self, node: OnnxNode) -> tuple[str, ...]:
        """The inputs of an ONNX node that are the op's operands: the first ones."""
        most = _operands(type(self))[1]
        return node.inputs if most == inf else node.data_inputs(int(most))

    def to_onnx(self) -> tuple[str, dict[str, object]]:
        """ONNX operator type and attributes; by default the first of its types, and ``onnx_names``."""
        if not self.onnx_types:
            raise ModelError(f"op kind {self.kind!r} has no ONNX spelling")
        given = ((key, getattr(self, name)) for name, key in self.onnx_names.items())
        return self.onnx_types[0], {key: _spelled(value) for key, value in given if value is not None}

    def least_opset(self, x: DType) -> int:
        """The first operator set in which :meth:`to_onnx` is right for an input ``x``, if schemas do not say."""
        return 1

    @cached_property
    def signature(self) -> str:
        """Kind and attributes as one canonical string, the same in every process."""
        values = ",".join(f"{field.name}={getattr(self, field.name)!r}" for field in fields(self))
        return f"{self.kind}({values})"

    def attributes(self) -> dict[str, object]:
        """Attributes as JSON values."""
        return {field.name: getattr(self, field.name) for field in fields(self)}

    @staticmethod
    def from_attributes(kind: str, attributes: Mapping[str, object]) -> Op:
        """Inverse of :meth:`attributes`; raises GraphError for an unknown kind or attribute."""
        cls = op_class(kind)
        known = {field.name for field in fields(cls)}
        for name in attributes:
            if name not in known:
                raise GraphError(f"op kind {kind!r} has no attribute {name!r}; {did_you_mean(name, known)}")
        try:
            return cls(**{name: _freeze(value) for name, value in attributes.items()})
        except TypeError as error:
            raise GraphError(f"op kind {kind!r}: {error}") from None


def _of_plugin(added: Plugin, found: type[Op]) -> type[Op]:
    if found.kind != added.name:
        raise added.error(f"is an op of kind {found.kind!r}, whose entry point must have that name")
    for name in ("multiply_adds", "flops", "work"):
        if not (own := getattr(found, name)).__module__.startswith("iossim."):
            setattr(found, name, added.guarded(own))
    return found


@cache
def register_all() -> None:
    """Import the modules of iossim's ops, so that ``Op.registry`` has all of their kinds."""
    modules("iossim.ir.ops")


def _own_names() -> list[str]:
    register_all()
    return [kind for kind, op in Op.registry.items() if op.__module__.startswith("iossim.")]


def _registered(kind: str) -> type[Op] | None:
    if kind not in Op.registry:
        register_all()
    return Op.registry.get(kind)


#: Op kinds by name; a class of another package is registered when it is imported.
OPS: Group[type[Op]] = Group(
    "unknown op kind {!r}",
    _own_names,
    _registered,
    Extension("iossim.ops", "a class of Op", _of_plugin, lambda each: isinstance(each, type) and issubclass(each, Op)),
    GraphError,
)


def op_class(kind: str) -> type[Op]:
    """The class of an op kind; raises GraphError for an unknown one."""
    return OPS.find(kind)


class KindTable(dict[str, _T]):
    """A table of one property per op kind (a gradient, a kernel), by name, private to one part of iossim."""

    def register(self, *kinds: str | type[Op]) -> Callable[[_T], _T]:
        """Decorator that enters the decorated object for op kinds, each given by its name or its class."""

        def enter(entry: _T) -> _T:
            self.update(dict.fromkeys((each if isinstance(each, str) else each.kind for each in kinds), entry))
            return entry

        return enter


def _freeze(value: object) -> object:
    return tuple(_freeze(item) for item in value) if isinstance(value, list) else value


def _spelled(value: object) -> object:
    if isinstance(value, bool):
        return int(value)
    return list(value) if isinstance(value, tuple) else value


def require(condition: bool, reason: str) -> None:
    """Raise GraphError with ``reason`` unless ``condition`` holds; shape inference is written with it."""
    if not condition:
        raise GraphError(reason)


@cache
def _declared(op: type[Op]) -> tuple[dict[str, object], dict[str, str]]:
    """An empty value for each attribute without a default, and the annotations of all."""
    kinds = {field.name: getattr(field.type, "__name__", str(field.type)) for field in fields(op)}
    needed = (field.name for field in fields(op) if field.default is MISSING)
    return {name: () if kinds[name].startswith("tuple") else 0 for name in needed}, kinds


@cache
def _operands(op: type[Op]) -> tuple[int, float, str]:
    """The least and the largest number of an op's operands, and their names; any number if it has its own ``infer``."""
    if op.infer is not Op.infer:
        return 0, inf, "its inputs"
    _, *given = signature(op.output).parameters.values()
    needed = [each.name for each in given if each.default is each.empty and each.kind is not each.VAR_POSITIONAL]
    most = inf if any(each.kind is each.VAR_POSITIONAL for each in given) else len(given)
    *names, last = (*needed, *(f"maybe {each.name}" for each in given[len(needed) :]))
    return len(needed), most, f"{', '.join(names)} and {last}" if names else last


def widen(array: Array) -> Array:
    """An array of any shape as an operand of arithmetic: 16-bit floats in fp32, others unchanged."""
    return as_float32(array) if array.dtype in (np.float16, DType.BFLOAT16.numpy) else array


def as_float32(array: Array) -> NDArray[np.float32]:
    """An array of any shape in fp32: NumPy evaluation of 16-bit floats accumulates in fp32."""
    return array.astype(np.float32, copy=False)


def broadcast(inputs: Sequence[TensorType]) -> TensorType:
    """The type that inputs of one element type broadcast to; raises GraphError if they do not broadcast."""
    dtypes = {value.dtype for value in inputs}
    listed = " and ".join(map(str, inputs))
    require(len(dtypes) == 1, f"its inputs {listed} differ in element type")
    return TensorType(broadcast_shapes(inputs), inputs[0].dtype)


def broadcast_shapes(inputs: Sequence[TensorType]) -> tuple[int, ...]:
    """The shape that inputs of any element types broadcast to; raises GraphError if they do not broadcast."""
    listed = " and ".join(map(str, inputs))
    rank = max(len(value.shape) for value in inputs)
    shape = []
    for axis in range(-rank, 0):
        sizes = {value.shape[axis] for value in inputs if -axis <= len(value.shape)} - {1}
        require(len(sizes) <= 1, f"its inputs {listed} do not broadcast")
        shape.append(sizes.pop() if sizes else 1)
    return tuple(shape)


def normal_axis(axis: int, rank: int, last: int | None = None) -> int:
    """``axis`` counted from the front; raises GraphError unless it is below ``rank`` (or at most ``last``)."""
    top = rank - 1 if last is None else last
    require(-rank <= axis <= top, f"axis {axis} is not one of a tensor with {rank} dimensions")
    return axis + rank if axis < 0 else axis


def require_windows(op: Any, rank: int, *sizes: Sequence[int], **values: TensorType) -> None:
    """Raise GraphError unless an op's strides, dilations, pads and further ``sizes`` of windows, and the images and
    weights that are its ``values``, are of so many spatial dimensions, and all but pads are positive.
    """
    for name, value in values.items():
        require(len(value.shape) == rank + 2, f"its {name} {value} does not have {rank} spatial dimensions")
    sized = (op.strides, op.dilations, *sizes)
    require({*map(len, sized)} == {rank} and len(op.pads) == 2 * rank, "has attributes of different ranks")
    require(min(min(each) for each in sized) > 0, "needs a positive kernel, stride and dilation")
    require(getattr(op, "groups", 1) > 0, "needs at least one group")


@dataclass(frozen=True)
class AlongAxis(Op):
    """Base of ops along one axis of their first input; when read from ONNX, the axis is counted from the front."""

    axis: int

    def mixes_images(self, first_varies: bool) -> bool:
        return self.axis == 0

    def completed(self, node: OnnxNode) -> Self:
        return replace(self, axis=normal_axis(self.axis, len(node.input_type(0).shape)))
