"""Kinds of measured operators: columns that name their sizes, the conversion to an op, and the inverse."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from iossim.ir.op import Op
from iossim.ir.types import DType, TensorType
from iossim.measurements.operator import Operator

#: Larger sizes do not occur in a network.
LARGEST_SIZE = 2**31 - 1

Sizes = dict[str, int]


class RecordError(ValueError):
    """A record that names no operator; ``column`` is the invalid one, if it is a single one."""

    def __init__(self, reason: str, column: str | None = None) -> None:
        super().__init__(reason)
        self.column = column


#: Parts of an operator: the op, the types of its inputs, and the indices of weights among these.
Made = tuple[Op, tuple[TensorType, ...], tuple[int, ...]]


class Parts(Protocol):
    """Function from sizes to op, input types and indices of weights."""

    def __call__(self, sizes: Sizes, dtype: DType) -> Made: ...


@dataclass(frozen=True, slots=True)
class Column:
    """A size of an operator. ``square`` is the column that sets height and width at once."""

    name: str
    square: str = ""
    smallest: int = 1
    default: int | None = None
    is_transposition: bool = False

    @property
    def spelling(self) -> str:
        return f"{self.name} (or {self.square})" if self.square else self.name

    def read(self, value: object) -> int:
        """The size in a cell; raises RecordError."""
        if self.is_transposition:
            if value in ("N", "T", "n", "t"):
                return int(value in ("T", "t"))
            raise RecordError(f"{self.name} is {shown(value)}, not N or T", self.name)
        number = _whole_number(value)
        if number is not None and number > LARGEST_SIZE:
            raise RecordError(f"{self.name} is {shown(value)}, too large: at most {LARGEST_SIZE}", self.name)
        if number is None or number < self.smallest:
            raise RecordError(f"{self.name} is {shown(value)}, not a whole number from {self.smallest}", self.name)
        return number

    def write(self, size: int) -> int | str:
        return "NT"[size] if self.is_transposition else size


@dataclass(frozen=True, slots=True)
class OperatorKind:
    """The columns of a kind of operators, the conversion from them, and the inverse."""

    name: str
    columns: tuple[Column, ...]
    parts: Parts
    sizes: Callable[[Operator], Sizes]
    aliases: tuple[str, ...] = ()


def columns(*names: str) -> tuple[Column, ...]:
    """Sizes with one column each."""
    return tuple(Column(name) for name in names)


def pair(name: str, square: str, smallest: int = 1, default: int | None = None) -> tuple[Column, Column]:
    """Height and width of one item."""
    return Column(f"{name}_h", square, smallest, default), Column(f"{name}_w", square, smallest, default)


#: Columns of images, and of sliding windows.
IMAGE = pair("in", "in_size")
WINDOW = (*pair("kernel", "kernel"), *pair("stride", "stride"), *pair("pad", "padding", smallest=0))


def both(sizes: Sizes, name: str) -> tuple[int, int]:
    """Height and width of ``name``."""
    return sizes[f"{name}_h"], sizes[f"{name}_w"]


def named(name: str, values: tuple[int, ...]) -> Sizes:
    """The columns of a height and a width; raises RecordError for another number of dimensions."""
    if len(values) != 2:
        raise RecordError(f"{name} has {len(values)} dimensions: there are columns for two")
    return {f"{name}_h": values[0], f"{name}_w": values[1]}


def symmetric(pads: tuple[int, ...]) -> Sizes:
    """The columns of a symmetric padding; raises RecordError for any other."""
    half = len(pads) // 2
    if pads[:half] != pads[half:]:
        raise RecordError(f"padding {pads} differs before and after: it has no columns")
    return named("pad", pads[:half])


def image_sizes(operator: Operator) -> Sizes:
    """The columns of an operator's first input, an image."""
    batch, channels, *image = operator.inputs[0].shape
    return {"batch": batch, "channels": channels} | named("in", tuple(image))


def shown(value: object) -> str:
    """A cell's value in a message."""
    return "empty" if value in ("", None) else repr(value)


def _whole_number(value: object) -> int | None:
    """The integer in a cell of text or JSON; a spreadsheet may write integers as 3.0."""
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    try:
        return int(value) if isinstance(value, int | str) else _whole(value)
    except ValueError:
        pass
    try:
        return _whole(float(value))
    except ValueError:
        return None


def _whole(value: float) -> int | None:
    return int(value) if value.is_integer() else None
