"""Compiled functions by the C compiler, which round as numba does, and the place of their machine code."""

import copy
import math
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from iossim import api
from iossim.base import by_numba, compile_time, compiled, user_folders
from iossim.base.compiled import Compiled, Floats, jit
from iossim.base.errors import OptionError
from iossim.base.native import library
from iossim.base.native.translation import Translation, make, translate
from iossim.base.native.types import UntranslatableError

needs_compiler = pytest.mark.skipif(library.compiler() is None, reason="there is no C compiler")

Row = np.dtype([("kind", np.int64), ("size", np.float64)])
_TABLE = (0.5, 1.5, 2.5)


class Shelf(NamedTuple):
    """Arrays of one and two dimensions, and one that nothing is done with."""

    first: Floats
    second: Floats
    idle: NDArray[np.int32]
    factor: float


class Room(NamedTuple):
    shelf: Shelf
    count: int


@jit
def whole(a: int, b: int) -> tuple[int, int, bool, int]:
    return a // b, a % b, (a < b) != (a >= 0), max(a, b) - min(a, b, 3)


@jit
def part(x: float, y: float, n: int) -> tuple[float, float, int]:
    total = 0
    for step in range(n, -1, -2):
        if step == 3:
            continue
        total += step
        if total > 20:
            break
    scale = 1.0 if n else x
    return max(x, y) * scale + total / 7, math.log1p(abs_of(y)) ** 1.5, math.floor(x) + math.ceil(y)


@jit
def abs_of(x: float) -> float:
    return -x if x < 0.0 else x


@jit
def arrange(room: Room, rows: Annotated[NDArray[np.void], Row], out: Floats) -> int:
    shelf, count = room
    first, second, _, factor = shelf
    width = second.shape[1]
    sums = np.zeros((count, width))
    most = -np.inf
    for row in range(count):
        for column in range(width):
            sums[row, column] += first[row] * second[row, column] * factor
        most = max(most, total_of(sums[row]))
        out[row] = most + _TABLE[rows[row]["kind"]] * rows[row]["size"]
    out[-1] = 0.0
    second[0] = factor
    second[0, 1] = out[0] = most
    return len(out)


@jit
def total_of(values: Floats) -> float:
    total = 0.0
    for value in values:
        total += value
    return total


def python_only(text: str) -> str:
    return text.upper()


def by_c(function: Any, library_of: library.Library | None = None) -> Callable[..., Any]:
    call = library_of.function(function) if library_of else function._by_c()
    assert call is not None
    found: Callable[..., Any] = call
    return found


@needs_compiler
@given(
    st.one_of(
        st.tuples(st.just(whole), st.integers(-50, 50), st.integers(-9, 9).filter(bool)),
        st.tuples(st.just(part), st.floats(-50, 50), st.floats(-50, 50), st.integers(0, 9)),
    )
)
def test_numbers(call: Any) -> None:
    function, *numbers = call
    assert by_c(function)(*numbers) == function.py_func(*numbers)


@needs_compiler
@given(st.integers(1, 4), st.integers(2, 3), st.floats(0.1, 9))
def test_arrays_rows_and_named_tuples(count: int, width: int, factor: float) -> None:
    random = np.random.default_rng(count)
    shelf = Shelf(random.random(count), random.random((count, width)), np.zeros((2, 3), dtype=np.int32), factor)
    rows = np.array([(index % 3, index / 3) for index in range(count)], dtype=Row)
    given = Room(shelf, count), rows, np.zeros(count + 1)
    other = copy.deepcopy(given)
    assert by_c(arrange)(*given) == arrange.py_func(*other)  # type: ignore[attr-defined]
    for one, two in zip((*given[0].shelf[:2], given[2]), (*other[0].shelf[:2], other[2]), strict=True):
        assert one.tolist() == two.tolist()


@needs_compiler
@pytest.mark.parametrize("wrong", [np.zeros((2, 2)), np.zeros(4, dtype=np.int32), np.zeros(8)[::2], 3.0])
def test_arguments_of_other_types_are_refused(wrong: object) -> None:
    """They are left to numba, which compiles for them."""
    with pytest.raises((TypeError, ValueError, BufferError)):
        by_c(total_of.py_func, compiled._library(__name__))(wrong)  # type: ignore[attr-defined]


def test_what_is_not_translated_is_left_out() -> None:
    def text_of(value: float) -> float:
        return float(str(value))

    text_of.__module__ = __name__
    with pytest.raises(UntranslatableError, match=r"text_of: str\(value\)"):
        Translation([text_of], compiled.callee)
    both = translate([text_of, total_of.py_func], compiled.callee)  # type: ignore[attr-defined]
    assert "total_of_entry" in both
    assert "text_of" not in both


def every_compiled() -> Iterator[Compiled]:
    """All functions of iossim that are compiled."""
    for package in (import_module("iossim"), import_module("iossim.backends")):
        for path in Path(package.__path__[0]).rglob("*.py"):
            if "iossim.base.compiled import jit" in path.read_text():
                parts = path.relative_to(package.__path__[0]).with_suffix("").parts
                import_module(".".join((package.__name__, *parts)))
    for module, functions in compiled._of_module.items():
        if module.startswith("iossim."):
            yield from functions


def test_all_but_a_few_functions_are_translated() -> None:
    missing = set()
    for each in every_compiled():
        try:
            if not each.may_be_c:
                raise UntranslatableError
            Translation([each.py_func], compiled.callee)
        except UntranslatableError:
            missing.add(each.py_func.__name__)
    assert not missing


@needs_compiler
def test_a_library_that_came_with_the_package_needs_no_compiler(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    functions = [abs_of.py_func]  # type: ignore[attr-defined]
    name = library.library_name(functions, compiled.callee)
    assert make(tmp_path / name, translate(functions, compiled.callee))
    monkeypatch.setattr(library, "SHIPPED", tmp_path)
    monkeypatch.setattr(library, "compiler", lambda: None)
    made = compiled._load_or_make(name, functions)
    assert made is not None
    assert by_c(functions[0], made)(-2.5) == 2.5
    assert compiled._load_or_make("of-another-source.so", functions) is None


def test_without_library_compiler_and_numba_one_line_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(library, "compiler", lambda: None)
    monkeypatch.setitem(sys.modules, "numba", None)
    monkeypatch.setattr(compiled, "_made", {})
    with pytest.raises(OptionError, match=r"^test_native cannot be compiled: .* pip install numba$"):
        Compiled(abs_of.py_func, {})(1.0)  # type: ignore[attr-defined]


def test_a_name_changes_with_what_a_function_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    def name() -> str:
        return library.library_name([arrange.py_func], compiled.callee)  # type: ignore[attr-defined]

    before = name()
    monkeypatch.setattr(f"{__name__}._TABLE", (0.5, 1.5, 3.5))
    assert name() != before
    monkeypatch.undo()
    assert name() == before
    monkeypatch.setattr(total_of, "py_func", abs_of.py_func)  # type: ignore[attr-defined]
    assert name() != before


@needs_compiler
@pytest.mark.slow
@pytest.mark.parametrize(
    ("model", "engine", "options"),
    [("inception_v3", "graph", {}), ("squeezenet", "paper", {"stages": "paper"}), ("ios_sample", "partition", {})],
)
def test_c_rounds_as_numba(model: str, engine: str, options: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Every call of a whole search is made both ways, and what it returns and writes is the same to the last bit."""
    called: set[str] = set()

    def both_ways(function: Compiled, call: Callable[..., Any]) -> Callable[..., Any]:
        def run(*arguments: Any) -> Any:
            called.add(function.py_func.__name__)
            other = copy.deepcopy(arguments)
            found = call(*arguments)
            assert found == function.by_numba(*other)
            assert copy_of(arguments) == copy_of(other)
            return found

        return run

    for function in every_compiled():
        if call := function._by_c():
            monkeypatch.setattr(function, "_call", both_ways(function, call))
    space = api.search_options(options.get("stages", "general"), None, None)
    api.compare(model, "v100-sxm2", engine=engine, options=space)
    assert {"find_endings", "pick", "relax", "_time_kernels", "_hash_stages", "_grow"} <= called


def copy_of(values: Any) -> Any:
    """What is in arguments, as bytes where it is an array."""
    if isinstance(values, np.ndarray):
        return values.tobytes()
    return tuple(map(copy_of, values)) if isinstance(values, tuple) else values


def test_no_search_is_told_the_time_of_compiling(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr(compile_time, "perf_counter", lambda: now[0])
    begun = compile_time.working_s()
    now[0] += 1
    with compile_time.compiling():
        now[0] += 20
        with compile_time.compiling():
            now[0] += 3
    now[0] += 2
    assert compile_time.working_s() - begun == 3


def test_long_compiling_is_told_once(monkeypatch: pytest.MonkeyPatch) -> None:
    from threading import Event

    told = Event()
    monkeypatch.setattr(compile_time, "_LONG_S", 0.0)
    monkeypatch.setattr(compile_time, "on_long_compiling", [told.set])
    with compile_time.compiling():
        assert told.wait(30)
    assert compile_time.on_long_compiling == []


PROGRAM = """
from iossim.base.compiled import jit
from iossim.base.by_numba import cache_folder

@jit
def twice(x):
    return 2 * x

@jit(fastmath=True)
def thrice(x):
    return twice(x) + x

made = thrice.by_numba
print(thrice(7), made.stats.cache_hits[made.signatures[0]] if made.stats.cache_hits else 0, cache_folder())
"""


NATIVE = """
from iossim.base.compiled import jit

@jit
def twice(x: int) -> int:
    return 2 * x

print(twice(7))
"""


def run(program: str, folder: Path, check: bool = True, **environment: str) -> subprocess.CompletedProcess[str]:
    path = folder / "program.py"
    path.write_text(program)
    line = [sys.executable, str(path)]
    return subprocess.run(line, env={**os.environ, **environment}, capture_output=True, text=True, check=check)


def test_a_second_process_reads_the_cache(tmp_path: Path) -> None:
    store = tmp_path / "store"
    for expected in ("0", "1"):
        value, hits, folder = run(PROGRAM, tmp_path, IOSSIM_CACHE_DIR=str(store)).stdout.split()
        assert (value, hits) == ("21", expected)
        assert Path(folder).parent == store
        assert list(Path(folder).rglob("*.nbi"))


def test_without_a_writable_folder_it_still_compiles(tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("")  # a file where a folder would have to be
    done = run(PROGRAM, tmp_path, IOSSIM_CACHE_DIR=str(blocked), TMPDIR=str(tmp_path))
    value, _, folder = done.stdout.split()
    assert value == "21"
    assert Path(folder).is_relative_to(tmp_path)
    (warning,) = done.stderr.splitlines()
    assert f"{blocked}: Not a directory" in warning
    assert "set IOSSIM_CACHE_DIR to a folder that you alone can write" in warning


def _of_another_user(folder: Path) -> None:
    os.chown(folder, 12345, 12345)


def _writable_by_all(folder: Path) -> None:
    folder.chmod(0o777)


def _link_of_another_user(folder: Path) -> None:
    moved = folder.with_name("elsewhere")
    folder.rename(moved)
    folder.symlink_to(moved)
    os.chown(folder, 12345, 12345, follow_symlinks=False)


@pytest.mark.parametrize(
    ("place", "spoil"),
    [
        ("cache", _writable_by_all),
        ("cache/native", _of_another_user),
        ("tmp/iossim-UID", _of_another_user),
        ("tmp/iossim-UID", _link_of_another_user),
        ("tmp/iossim-UID/native", _writable_by_all),
    ],
)
def test_code_of_others_does_not_run(place: str, spoil: Callable[[Path], None], tmp_path: Path) -> None:
    """A planted library is not loaded from the cache folder, nor from the one that takes its place."""
    if spoil is not _writable_by_all and os.geteuid() != 0:
        pytest.skip("only root can give a folder to another user")
    if library.compiler() is None:
        pytest.skip("needs a C compiler")
    said, cache, temporary = tmp_path / "said", tmp_path / "cache", tmp_path / "tmp"
    temporary.mkdir()

    def ran() -> tuple[str, str]:
        done = run(NATIVE, tmp_path, check=False, IOSSIM_CACHE_DIR=str(cache), TMPDIR=str(temporary))
        return done.stdout, done.stderr

    kept = tmp_path / place.replace("UID", str(os.geteuid()))
    if place.startswith("tmp"):
        cache.write_text("")  # no folder: that of temporary files takes its place
    assert ran()[0] == "14\n"
    (made,) = kept.rglob("*.so")
    source = tmp_path / "planted.c"
    source.write_text(f'#include <stdio.h>\n__attribute__((constructor)) void f() {{ fclose(fopen("{said}", "w")); }}')
    subprocess.run([str(library.compiler()), "-shared", "-fPIC", str(source), "-o", str(made)], check=True)
    ran()
    assert said.exists(), "the plant works"
    said.unlink()
    spoil(kept)
    value, remark = ran()
    assert not said.exists()
    assert value == "14\n"
    assert len(remark.splitlines()) == 1
    assert str(kept) in remark or place.startswith("tmp")
    assert not list(temporary.glob("iossim-[!0-9]*")), "a folder of the process goes with it"


def test_a_folder_on_the_way_may_be_sticky_or_of_the_users_own_group(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tmp_path.chmod(0o1777)
    folder = tmp_path / "above" / "own"
    assert user_folders.own_folder(folder) == folder
    assert {each.stat().st_mode & 0o777 for each in (folder, folder.parent)} == {0o700}
    folder.parent.chmod(0o770)
    monkeypatch.setattr(user_folders, "_own_group", lambda: folder.stat().st_gid)
    assert user_folders.own_folder(folder) == folder
    monkeypatch.setattr(user_folders, "_own_group", lambda: None)
    with pytest.raises(PermissionError, match=f"other users may write {folder.parent}"):
        user_folders.own_folder(folder)
    folder.parent.chmod(0o700)
    tmp_path.chmod(0o777)
    with pytest.raises(PermissionError, match=f"other users may write {tmp_path}"):
        user_folders.own_folder(folder)
    tmp_path.chmod(0o700)
    folder.chmod(0o1777)  # others may add files to it
    with pytest.raises(PermissionError, match=f"other users may write {folder}"):
        user_folders.own_folder(folder)


def test_a_changed_source_moves_the_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    before = by_numba.source_hash()
    sources = [(name, text + b"# changed") for name, text in by_numba.compiled_sources()]
    monkeypatch.setattr(by_numba, "compiled_sources", lambda: iter(sources))
    by_numba.source_hash.cache_clear()
    try:
        assert by_numba.source_hash() != before
    finally:
        monkeypatch.undo()
        by_numba.source_hash.cache_clear()
    assert by_numba.source_hash() == before
