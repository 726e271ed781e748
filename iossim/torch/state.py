"""The state of a module that its outputs depend on: collected once, and compared before each call, by loops in C.

It covers what PyTorch's own guards do: parameters, buffers and other tensors, submodules, their classes and modes,
hooks, attributes and their contents, and names that ``forward`` and its callees read from their class, module or
closure. Tensors are compared by identity, address, version and layout. Writes through ``.data``, or under
inference mode, change none of these, so that the first and last values of a tensor are compared, too; those on a GPU
by the GPU, every few milliseconds.
"""

from __future__ import annotations

import random
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sized
from contextlib import contextmanager
from dis import get_instructions
from functools import cached_property, partial
from itertools import chain
from operator import attrgetter, is_, itemgetter
from sys import stdlib_module_names
from time import perf_counter
from types import CellType, CodeType, FunctionType, MethodType, ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn.modules import module as torch_module

#: A larger container is compared by its size only; values found after this total number are not compared.
_LONGEST, _MOST = 1_000, 50_000
#: Number of values of a tensor that are compared at its beginning, and at its end.
_PROBED = 32
#: Objects of these packages are not inspected, except for containers and name spaces.
_OPAQUE = (stdlib_module_names | {"torch", "numpy"}) - {"argparse", "collections", "types"}
#: Time between two comparisons of values that a device compares.
_PAUSE_S = 0.005
#: Devices whose values are read without a kernel.
_READABLE = {"cpu"}
_HOOKS = ("_forward_hooks", "_forward_pre_hooks")
_TABLES = ("_parameters", "_buffers", "_modules")
_QUIET = vars(nn.Module()).keys() - {"training", *_TABLES}
_CONTAINERS: tuple[type[Any], ...] = (OrderedDict, dict, list, set, deque)
_END = object()
_SCALARS = (bool, int, float, complex, str, bytes, type(None))
_INTEGERS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}

#: Contents of a value: their paths, and the function that reads them.
_Part = tuple[Iterable[str], Callable[[], Iterable[object]]]


class State:
    """A module's state at construction; ``tensors`` are all that were found, ``plain`` those in known memory."""

    def __init__(self, module: nn.Module) -> None:
        self.tensors: list[torch.Tensor] = []
        self._module = module
        #: The path and token of each value; all values are kept alive, so that no other gets the same identity.
        self._tokens: list[tuple[str, object]] = []
        self._values: list[object] = []
        self._reads: list[Callable[[], Iterable[object]]] = []
        self._sized: dict[str, Sized] = {f"_global{name}": getattr(torch_module, f"_global{name}") for name in _HOOKS}
        self._typed: list[object] = []
        self._classes: set[type] = set()
        self._tables: set[int] = set()
        self._held: list[tuple[object, list[tuple[object, ...]]]] = []
        self._buffers: list[Any] = []  # of NumPy, whose types are no buffers before Python 3.12
        self._walk(module)
        self.plain = [tensor for tensor in self.tensors if _is_plain(tensor)]
        self._turnable = [tensor for tensor in self.plain if tensor.dim() > 1]
        self._versioned = [tensor for tensor in self.plain if not tensor.is_inference()]
        blocks: dict[tuple[torch.device, int], list[torch.Tensor]] = {}
        for tensor in self.plain:
            for block in _blocks(tensor):
                if block.device.type in _READABLE:
                    self._buffers.append(block.numpy())
                else:
                    blocks.setdefault((block.device, block.element_size()), []).append(block)
        self._probe = b"".join(self._buffers)
        self._far = [_Far(device, together) for (device, _), together in blocks.items()]
        self._empty = [each for each in self._sized.values() if not each]
        self._filled = [each for each in self._sized.values() if each]
        self._objects, self._found, self._reason = [*self._read()], self._now(), ""

    def change(self, *, waits: bool = False) -> str:
        """The path of a value that was replaced; empty if there is none.

        Unless it ``waits``, values on a device are those of the last comparison that the device has come to.
        """
        found = self._now(waits)
        if not all(map(is_, self._read(), self._objects)) or found != self._found:
            now, self._objects, self._found = State(self._module), [*self._read()], found
            self._reason = self._difference(now) or ("" if found[-1] else "a weight")
            if not self._reason:  # an equal number may be another object
                vars(self).update(vars(now))
        return self._reason

    def _difference(self, now: State) -> str:
        if self._tokens == now._tokens:
            return ""
        were, are = set(self._tokens), set(now._tokens)
        different = (pair[0] for pair in (*now._tokens, *self._tokens) if (pair in were) != (pair in are))
        return next(different, "the order of its parts") or "a table of its parts"

    def restore(self, copies: Iterable[torch.Tensor]) -> None:
        """Restore the values, and copy those of ``copies`` into ``plain`` tensors."""
        for holder, kept in self._held:
            if [*map(id, chain.from_iterable(_contents(holder)))] != [*map(id, chain.from_iterable(kept))]:
                _refill(holder, kept)
        with torch.no_grad():
            for tensor, copy in zip(self.plain, copies, strict=True):
                if tensor.shape == copy.shape and not torch.equal(tensor, copy):
                    tensor.data.copy_(copy)

    def _read(self) -> Iterator[object]:
        """Every object that is compared by its identity, then :data:`_END`; that alone where an attribute is gone."""
        try:
            return chain(*[read() for read in self._reads], (_END,))
        except KeyError:
            return iter((_END,))

    def _now(self, waits: bool = True) -> tuple[object, ...]:
        """Every compared value; the last says whether probed values are unchanged."""
        far = [each.is_same(waits) for each in self._far]
        return (
            any(self._empty),
            [*map(len, self._filled)],
            [*map(torch.Tensor.data_ptr, self.plain)],
            [*map(attrgetter("nbytes"), self.plain)],
            [*map(torch.Tensor.stride, self._turnable)],  # no other change leaves address and size as they are
            [*map(attrgetter("_version"), self._versioned)],
            b"".join(self._buffers) == self._probe and all(far),
        )

    def _walk(self, module: nn.Module) -> None:
        found: deque[tuple[str, object]] = deque([("", module), *_filled(self._sized)])
        seen: set[int] = set()

        def keep(part: _Part) -> None:
            paths, read = part
            for path, value in zip(paths, read(), strict=True):
                self._tokens.append((path, _token(value)))
                self._values.append(value)
                found.append((path, value))

        while found:
            path, value = found.popleft()
            is_own = isinstance(value, nn.Module | torch.Tensor) or id(value) in self._tables
            may_hold = is_own or (len(self._values) < _MOST and not isinstance(value, _SCALARS))
            if may_hold and id(value) not in seen:
                seen.add(id(value))
                if isinstance(value, nn.Module):
                    keep(([_join(path, "__class__")], partial(map, type, (value,))))
                for part in self._parts(path, value):
                    self._reads.append(part[1])
                    keep(part)
                keep(_fixed(path, value))
        self._reads.append(partial(map, type, self._typed))
        keep((self._sized, lambda: map(len, self._sized.values())))

    def _parts(self, path: str, value: object) -> Iterator[_Part]:
        """The parts of a value that may be replaced."""
        match value:
            case torch.Tensor():
                self.tensors.append(value)
            case np.ndarray() if value.flags.c_contiguous and value.dtype.kind in "biuf":
                flat = value.reshape(-1)
                self._buffers += [flat[:_PROBED], flat[-_PROBED:]]
            case nn.Module():
                own = vars(value)
                hooks = {name: own[name] for name in _HOOKS}
                names = [*(name for name in own if name not in _QUIET), *dict(_filled(hooks))]
                self._sized |= {_join(path, name): own[name] for name in (*_HOOKS, *_TABLES)}
                self._sized[f"attributes of {path}"] = own
                self._tables |= {id(own[name]) for name in _TABLES}
                self._held.append((own, _contents(own)))
                self._typed.append(value)
                yield [_join(path, "" if name in _TABLES else name) for name in names], partial(itemgetter(*names), own)
                yield from self._class_parts(type(value))
            case dict() | list() | set() | deque():
                is_table = id(value) in self._tables
                self._held.append((value, _contents(value)))
                if not value or not (is_table or len(value) <= _LONGEST):
                    if not is_table:
                        self._sized[path if path not in self._sized else f"{path} {len(self._sized)}"] = value
                    return
                names = [_join(path, str(name)) for name in (value if isinstance(value, dict) else range(len(value)))]
                if not is_table:
                    yield names, value.__iter__
                if isinstance(value, dict):
                    yield names, value.values
            case FunctionType() if not _is_opaque(value):
                yield from _function_parts(path, value)
            case type() | ModuleType() | FunctionType() | MethodType():
                pass
            case _ if hasattr(value, "__dict__") and not _is_opaque(type(value)):
                self._typed.append(value)
                yield from self._parts(path, vars(value))

    def _class_parts(self, kind: type) -> Iterator[_Part]:
        """The attributes of a class and its bases that its forward, and the methods named there, read."""
        if kind in self._classes:
            return
        self._classes.add(kind)
        bases = kind.__mro__[: kind.__mro__.index(nn.Module)]
        names: set[str] = set()
        more = {"forward"}
        while more:
            names |= more
            named = ((name, _function(vars(base).get(name))) for base in bases for name in sorted(more))
            functions = {name: function for name, function in named if function is not None}
            more = {name for function in functions.values() for name in _names_in(function)} - names
            for name, function in functions.items():
                if _is_opaque(function):  # it is inspected here only
                    yield from _function_parts(f"{kind.__name__}.{name}", function)
        ordered = sorted(names)
        for base in bases:
            yield [f"{base.__name__}.{name}" for name in ordered], partial(map, vars(base).get, ordered)


class _Far:
    """Values on a device, which compares them with what they were when this was made; the host need not wait for it."""

    def __init__(self, device: torch.device, blocks: list[torch.Tensor]) -> None:
        self._device, self._blocks, self._were = device, blocks, torch.cat(blocks)
        with torch.inference_mode(mode=False):  # it is written in whatever mode the module is called
            self._differs = torch.zeros((), dtype=torch.bool, device="cpu", pin_memory=device.type == "cuda")
        self._is_same, self._ended = True, _event(device)
        self._begin()
        self._next_s = 0.0

    def is_same(self, waits: bool) -> bool:
        """The last result that is there; another comparison begins :data:`_PAUSE_S` later. One of now if it ``waits``.

        It takes as long as some ten launches of kernels, which a call of a small module must not take each time.
        """
        now_s = perf_counter()
        if waits or (now_s >= self._next_s and self._ended.query()):
            self._next_s = now_s + _PAUSE_S
            self._is_same = not self._differs
            self._begin()
            if waits:
                self._ended.synchronize()
            if self._ended.query():
                self._is_same = not self._differs
        return self._is_same

    def _begin(self) -> None:
        with torch.cuda.device_of(self._were):  # an event is of one device, and another may be current
            self._differs.copy_((torch.cat(self._blocks) != self._were).any(), non_blocking=True)
            self._ended.record()


def _event(device: torch.device) -> torch.cuda.Event | SimpleNamespace:
    """An event of a device; of others than CUDA one that has always come."""
    if device.type == "cuda":
        return torch.cuda.Event()
    return SimpleNamespace(record=lambda: None, synchronize=lambda: None, query=lambda: True)


def _function_parts(path: str, function: FunctionType) -> Iterator[_Part]:
    """A function's code and defaults, and the values that it reads: globals, attributes of modules, and its closure."""
    own = ("__code__", "__defaults__", "__kwdefaults__")
    yield [f"{path}.{name}" for name in own], partial(map, partial(getattr, function), own)
    outside = function.__globals__
    read = {each.argval for code in _codes(function) for each in get_instructions(code) if each.opname == "LOAD_GLOBAL"}
    modules = [value for name in sorted(read) if isinstance(value := outside.get(name), ModuleType)]
    for place, wanted in ((outside, read), *((vars(module), _names_in(function)) for module in modules)):
        names = sorted(name for name in wanted if name in place)
        yield names, partial(map, place.get, names)
    cells = [cell for cell in function.__closure__ or () if _is_filled(cell)]
    yield [f"{path} {number}" for number in range(len(cells))], partial(map, attrgetter("cell_contents"), cells)


def _names_in(function: FunctionType) -> set[str]:
    return {name for code in _codes(function) for name in code.co_names}


def _codes(function: FunctionType) -> list[CodeType]:
    """The code of a function, of nested functions, and of those in its closure, which a decorator calls."""
    inside = [cell.cell_contents for cell in function.__closure__ or () if _is_filled(cell)]
    codes = [function.__code__, *(each.__code__ for each in inside if isinstance(each, FunctionType))]
    for code in codes:
        codes += [each for each in code.co_consts if isinstance(each, CodeType)]
    return codes


def _fixed(path: str, value: object) -> _Part:
    """The fixed part of a value, which may contain parts that can be replaced."""
    held: Iterable[object] = ()
    match value:
        case tuple() | frozenset():
            held = value
        case partial():
            held = value.func, value.args, value.keywords
        case MethodType():
            held = value.__self__, value.__func__
        case property() | staticmethod() | classmethod() | cached_property():
            held = (_function(value),)
    values = [*held]
    return [path] * len(values), lambda: values


def _function(value: object) -> FunctionType | None:
    """The function underlying a class attribute."""
    for name in ("__func__", "fget", "func"):
        value = getattr(value, name, value)
    return value if isinstance(value, FunctionType) else None


def _is_filled(cell: CellType) -> bool:
    try:
        return cell.cell_contents is not cell
    except ValueError:
        return False


def _is_opaque(value: object) -> bool:
    return str(getattr(value, "__module__", "")).partition(".")[0] in _OPAQUE


def _filled(tables: Mapping[str, Sized]) -> list[tuple[str, Sized]]:
    """The tables that hold something, by name."""
    return [pair for pair in tables.items() if pair[1]]


def _join(path: str, name: str) -> str:
    return f"{path}.{name}" if path and name else path or name


def _contents(holder: Any) -> list[tuple[object, ...]]:
    """The entries of a container as they lie in it, whatever its class makes of them when they are asked for."""
    base = next(kind for kind in _CONTAINERS if isinstance(holder, kind))
    return [*base.items(holder)] if issubclass(base, dict) else [(value,) for value in base.__iter__(holder)]


def _refill(holder: Any, kept: Iterable[tuple[object, ...]]) -> None:
    base = next(kind for kind in _CONTAINERS if isinstance(holder, kind))
    put = base.__setitem__ if issubclass(base, dict) else base.add if base is set else base.append
    base.clear(holder)
    for entry in kept:
        put(holder, *entry)


def _token(value: object) -> object:
    """A token that distinguishes a value from others: for a number, its type and digits."""
    if isinstance(value, _SCALARS):
        return type(value), repr(value)
    if isinstance(value, torch.Tensor) and _is_plain(value):
        version = None if value.is_inference() else value._version
        return id(value), value.data_ptr(), value.shape, value.stride(), value.dtype, version
    return id(value)


def _is_plain(tensor: torch.Tensor) -> bool:
    return type(tensor) in (torch.Tensor, nn.Parameter) and tensor.layout is torch.strided and not tensor.is_meta


def _blocks(tensor: torch.Tensor) -> list[torch.Tensor]:
    """The first and last values of a tensor in memory, as integers of their bits; empty if memory has gaps."""
    number, size = tensor.numel(), tensor.element_size()
    span = 1 + sum((length - 1) * stride for length, stride in zip(tensor.shape, tensor.stride(), strict=True))
    if number != span or size not in _INTEGERS or tensor.is_complex() or tensor.is_quantized:
        return []
    flat = tensor.detach().as_strided((number,), (1,)).view(_INTEGERS[size])
    return [flat] if number <= 2 * _PROBED else [flat[:_PROBED], flat[-_PROBED:]]


@contextmanager
def unchanged(module: nn.Module, seed: int) -> Iterator[State]:
    """The state of a module, which is restored in the end, as are random number generators, which are seeded."""
    state = State(module)
    copies = [tensor.detach().clone() for tensor in state.plain]
    chance, numpys = random.getstate(), np.random.get_state()
    try:
        with torch.random.fork_rng(range(torch.cuda.device_count() if torch.cuda.is_initialized() else 0)):
            torch.manual_seed(seed)
            random.seed(seed)
            np.random.seed(seed)
            yield state
    finally:
        random.setstate(chance)
        np.random.set_state(numpys)
        state.restore(copies)
