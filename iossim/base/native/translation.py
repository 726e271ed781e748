"""C of compiled functions, and libraries of it: a translation of the small subset of Python that they are written in.

Numbers have 64 bits and arrays know their sizes; operations are the same in the same order, so that results equal
numba's to the last bit. Unsupported constructs raise UntranslatableError. Indices are not checked, and none is
negative except literal ones; no integer is divided by 0.

Through C glue the interpreter calls a function: arguments are unpacked from Python objects, results packed. The
required part of Python's stable ABI is declared in ``prelude.c``, so that Python's headers are not needed.
"""

from __future__ import annotations

import subprocess
import tempfile
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

from iossim.base.native.library import FLAGS, Callees, Function, c_name, compiler
from iossim.base.native.statements import FunctionText
from iossim.base.native.types import (
    FLOAT,
    MASK,
    TRUTH,
    Array,
    MoreKnownError,
    Number,
    Record,
    Row,
    Signature,
    Tuple,
    Type,
    Unit,
    UntranslatableError,
)

_FORMATS = {"f8": "d", "u8": "LQ", "i8": "lq", "i4": "i", "i1": "b", "u1": "B", "b1": "?"}
_MOST_ARRAYS = 64


def entry(name: str, signature: Signature, declare: Callable[[Type], str], is_used: Callable[[Array], bool]) -> str:
    """The C entry point of a function for the interpreter. ``declare`` names types; an unused array is not unpacked."""
    lines: list[str] = []
    arrays = 0

    def take(kind: Type, given: str, place: str) -> None:
        nonlocal arrays
        if isinstance(kind, Number):
            letter = "t" if kind == TRUTH else kind.code
            lines.append(f"{place} = take_{letter}({given}, &taken);")
        elif isinstance(kind, Record):
            for index, (field, own) in enumerate(kind.fields):
                if not isinstance(own, Array) or is_used(own):
                    take(own, f"PyTuple_GetItem({given}, {index})", f"{place}.{field}")
        elif isinstance(kind, Array):
            if not is_used(kind):
                return
            arrays += 1
            code = kind.dtype.str[1:]
            formats, size = _FORMATS.get(code, "T"), kind.dtype.itemsize
            lines.append(f'view = take_array({given}, &taken, {kind.dimensions}, "{formats}", {size});')
            lines.append(f"{place}.at = view->buf;")
            sizes = "; ".join(f"{place}.n{axis} = view->shape[{axis}]" for axis in range(kind.dimensions))
            lines.append(f"if (view->shape) {{ {sizes}; }}")
        else:
            raise UntranslatableError(f"{name}: a parameter that is no array or number")

    for index, (_, kind) in enumerate(signature.parameters):
        lines.append(f"{declare(kind)} p{index};")
        take(kind, f"given[{index}]", f"p{index}")
    if arrays > _MOST_ARRAYS:
        raise UntranslatableError(f"{name}: more than {_MOST_ARRAYS} arrays")
    kinds = [kind for _, kind in signature.parameters]
    call = ", ".join(f"p{index}" for index in range(len(kinds)))
    returned = signature.returned
    found = "" if returned is None else f"{declare(returned)} found = "
    result = 'result = Py_BuildValue("");'
    if isinstance(returned, Number):
        result = f"result = {_made(returned, 'found')};"
    elif isinstance(returned, Tuple):
        items = [
            f"PyTuple_SetItem(result, {at}, {_made(item, f'found.v{at}')});" for at, item in enumerate(returned.items)
        ]
        result = " ".join([f"result = PyTuple_New({len(items)});", *items])
    body = "\n    ".join(lines)
    return f"""
static PyObject *{name}_entry(PyObject *self, PyObject *const *given, int64_t count) {{
    PyObject *result = 0;
    Taken taken;
    Py_buffer *view;
    taken.count = 0;
    if (count != {len(kinds)}) {{
        PyErr_SetString(PyExc_TypeError, "another number of arguments");
        return 0;
    }}
    {body}
    if (!PyErr_Occurred()) {{
        void *state = PyEval_SaveThread();
        {found}{name}({call});
        PyEval_RestoreThread(state);
        {result}
    }}
    give_back(&taken);
    return result;
}}"""


def table(names: list[str]) -> str:
    """The C function that returns an entry point by its name, or None."""
    rows = "".join(f'    {{"{name}", {name}_entry, 0x80, 0}},\n' for name in names)
    return f"""
static PyMethodDef methods[] = {{
{rows}    {{0, 0, 0, 0}}
}};
PyObject *find(const char *name) {{
    for (PyMethodDef *each = methods; each->name; each++)
        if (is_same(each->name, name)) return PyCMethod_New(each, 0, 0, 0);
    return Py_BuildValue("");
}}
"""


def _made(kind: Number, value: str) -> str:
    if kind == FLOAT:
        return f"PyFloat_FromDouble({value})"
    if kind == TRUTH:
        return f"PyBool_FromLong({value})"
    return f"PyLong_From{'Unsigned' if kind == MASK else ''}LongLong({value})"


#: The beginning of all translations.
_PRELUDE = Path(__file__).with_name("prelude.c")


def translate(functions: Sequence[Function], callee: Callees) -> str:
    """The C of the translatable ones of the functions, and of all their callees.

    ``callee`` gives the Python function of a compiled one, and whether it is inlined; None for anything else.
    """
    with suppress(Exception):
        return Translation(functions, callee).text
    able = []
    for function in functions:
        with suppress(Exception):  # unforeseen code of a plugin is left to numba
            Translation([function], callee)
            able.append(function)
    return Translation(able, callee).text


class Translation(Unit):
    """The C of functions and of all their callees, see :func:`translate`; raises UntranslatableError."""

    def __init__(self, functions: Sequence[Function], callee: Callees):
        super().__init__(callee)
        while True:
            self.types.clear()
            self.parts.clear()
            try:
                for function in functions:
                    self.define(function)
                called = [function for function in functions if not self._is_inner(function)]
                entries = [*map(self._entry, called), table([c_name(function) for function in called])]
                break
            except MoreKnownError:
                continue
        prelude = _PRELUDE.read_text(encoding="utf-8")
        self.text = "\n".join([prelude, *self.types.values(), *self.parts.values(), *entries])

    def define(self, function: Function, inline: bool = False) -> str:
        """Define a function in C; returns its name there."""
        name = c_name(function)
        if name not in self.parts:
            before = -1
            while before != len(self.locals) + self.widened:
                before = len(self.locals) + self.widened
                self.parts[name] = FunctionText(self, function, inline).text
            # Move it after its callees, which were defined meanwhile.
            self.parts[name] = self.parts.pop(name)
        return name

    def _is_inner(self, function: Function) -> bool:
        """True if only compiled functions call it: other callers use numba."""
        takes_rows = any(isinstance(kind, Row) for _, kind in self.signature(function).parameters)
        return takes_rows or (function.__name__.startswith("_") and c_name(function) in self.called)

    def _entry(self, function: Function) -> str:
        name = self.define(function)
        return entry(name, self.signature(function), self.declare, lambda array: array.place in self.used)


def make(path: Path, text: str) -> bool:
    """Compile C into a library; returns whether that succeeded."""
    with tempfile.TemporaryDirectory(dir=path.parent, prefix=f"{path.name}.") as folder:
        source, made = Path(folder) / "source.c", Path(folder) / "library.so"
        source.write_text(text)
        try:
            subprocess.run(
                [compiler() or "cc", *FLAGS, str(source), "-o", str(made), "-lm"],
                check=True,
                stdin=subprocess.DEVNULL,
                capture_output=True,
            )
        except (OSError, subprocess.CalledProcessError):
            return False
        made.replace(path)
    return True
