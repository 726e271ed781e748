"""``iossim.base``: numbers, sizes and YAML of users' files, misspelt names, folders, and what is found by name."""

import ctypes
import gzip
import json
import math
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.optimize
import yaml
from hypothesis import given
from hypothesis import strategies as st
from threadpoolctl import threadpool_limits

from iossim.base.errors import ModelError, OptionError, did_you_mean
from iossim.base.located_yaml import Dumper, LocatedYamlError, read_located, read_located_documents
from iossim.base.memory import size_bytes
from iossim.base.registry import Group
from iossim.base.solvers import least_squares, lsq_linear, solve_integer_program
from iossim.base.user_files import LARGEST, NumberError, read_json, read_number, read_text
from iossim.base.user_folders import user_cache, user_data
from iossim.ir.types import Precision

ANYTHING = st.one_of(st.floats(), st.integers(), st.integers(10**300, 10**400), st.text(), st.none(), st.booleans())


@given(st.text())
def test_an_error_is_one_line_of_some_length_whatever_it_quotes(quoted: str) -> None:
    """So no other test asks that of an error."""
    assert str(ModelError(f"model {quoted} is none")).isprintable()
    assert len(str(ModelError(5_000 * "name "))) < 1_700


@given(ANYTHING, st.booleans())
def test_a_number_that_can_be_or_a_reason(value: object, positive: bool) -> None:
    for given_value in (value, str(value)):
        try:
            found = read_number(given_value, positive=positive)
        except NumberError:
            continue
        assert found > 0 if positive else found >= 0
        assert found <= LARGEST
        assert found == float(given_value)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        ("", "is empty"),
        (None, "is empty"),
        ("x", "is not a number"),
        ("1_000", "is not a number"),
        (True, "is not a number"),
        (math.nan, "is not a number"),
        ("-inf", "is not finite"),
        (10**400, "is not finite"),
        (-1, "is negative"),
        (1e300, "is more than 1e+18, the largest value allowed"),
    ],
)
def test_reasons(value: object, reason: str) -> None:
    with pytest.raises(NumberError, match=f"^{reason}$".replace("+", r"\+")):
        read_number(value)


@given(st.recursive(st.one_of(st.none(), st.integers(-(10**30), 10**30), st.text()), st.lists))
def test_json_is_what_it_was(document: Any) -> None:
    assert read_json(json.dumps(document)) == document


def test_json_made_to_hurt() -> None:
    assert read_json("9" * 5000) == math.inf
    assert read_json(f"[{'9' * 60}]") == [pytest.approx(1e60)]
    for text in ("[" * 100_000, '{"a":' * 100_000):
        with pytest.raises(ValueError, match="nested too deeply"):
            read_json(text)


def test_sizes_of_memory() -> None:
    for text, size in (("64MiB", 64 << 20), ("1.5 GiB", 3 << 29), ("0B", 0), (" 512 KiB ", 512 << 10)):
        assert size_bytes(text, "workspace") == size
    for text, reason in (
        ("64", "say 64MiB"), ("64MB", "KiB, MiB, GiB"), ("much", "'much'"), ("-1MiB", "not a size"), ("0.3B", "no whole")
    ):  # fmt: skip
        with pytest.raises(OptionError, match=reason):
            size_bytes(text, "workspace")


DEVICES = ["a100-pcie-40gb", "a100-sxm-40gb", "h100-sxm", "t4", "v100-sxm2"]


@pytest.mark.parametrize(
    ("name", "nearest"),
    [
        ("v100-sxm3", "v100-sxm2"),
        ("V100", "v100-sxm2"),
        ("a100", "a100-sxm-40gb"),  # the shortest that begins so, though more letters are those of h100-sxm
        *(("", None), ("zzz", None), ("a device", None)),
    ],
)
def test_nearest_name(name: str, nearest: str | None) -> None:
    known = f"known: {', '.join(DEVICES)}"
    assert did_you_mean(name, DEVICES) == (f"did you mean {nearest!r}? {known}" if nearest else known)
    assert did_you_mean("FP16", [Precision.FP16, Precision.FP32]) == "did you mean 'fp16'? known: fp16, fp32"


@pytest.mark.parametrize(
    "value",
    ["2020-13-01", "9" * 5000, "!!int ''", "!!int x", "!!float ''", "!!bool x", "!!timestamp x", "!own x", "=", "*a", "&a 1"],
)  # fmt: skip
def test_a_value_that_cannot_be_read_names_its_line(value: str) -> None:
    with pytest.raises(LocatedYamlError) as caught:
        read_located(f"first: 1\nsecond:\n  third: {value}\n")
    assert caught.value.line == 3
    assert "\n" not in str(caught.value)


def test_tags_make_nothing_but_plain_values() -> None:
    assert read_located("a: !!python/object/apply:os.getcwd []\nb: !!set {c}").values == {"a": [], "b": {"c": None}}


@pytest.mark.parametrize("text", ["0E0", "1e3", "-2.5e-7", "1.0", "on", "null", "0x10", "plain"])
def test_text_that_looks_like_a_number_stays_text(text: str) -> None:
    written = yaml.dump({"value": text}, Dumper=Dumper)
    assert read_located(written).values == {"value": text}


def test_documents_know_their_lines_in_the_file() -> None:
    first, second = read_located_documents("# why\n---\na: 1\nb: [2,\n  3]\n---\n# nothing\n---\nc:\n  d: 4\n")
    assert first.values == {"a": 1, "b": [2, 3]}
    assert first.lines == {(): 3, ("a",): 3, ("b",): 4, ("b", 0): 4, ("b", 1): 5}
    assert second.values == {"c": {"d": 4}}
    assert second.lines == {(): 9, ("c",): 9, ("c", "d"): 10}
    assert read_located_documents("") == []
    with pytest.raises(LocatedYamlError, match="found another document") as caught:
        read_located("a: 1\n---\nb: 2\n")
    assert caught.value.line == 2
    with pytest.raises(LocatedYamlError, match="is given twice, first in line 3") as caught:
        read_located_documents("a: 1\n---\nb: 2\nb: 3\n")
    assert caught.value.line == 4


@pytest.mark.parametrize(
    ("folder", "kind", "default"), [(user_data, "DATA", ".local/share"), (user_cache, "CACHE", ".cache")]
)
def test_the_variable_wins_over_the_platforms_folder(
    folder: Callable[[], Path], kind: str, default: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv(f"IOSSIM_{kind}_DIR", str(tmp_path / "mine"))
    monkeypatch.setenv(f"XDG_{kind}_HOME", str(tmp_path / "platform"))
    assert folder() == tmp_path / "mine"
    monkeypatch.delenv(f"IOSSIM_{kind}_DIR")
    if sys.platform == "linux":
        assert folder() == tmp_path / "platform" / "iossim"
        monkeypatch.setenv(f"XDG_{kind}_HOME", "")
        assert folder() == Path.home() / default / "iossim"


ZIPPED = gzip.compress(b"stream,name", mtime=0)
TEXT = "stream,name\r\n0,gemm µ\r\n"


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "utf-16-le with a mark"])
@pytest.mark.parametrize("zipped", [False, True])
def test_texts_as_people_have_them(encoding: str, zipped: bool, tmp_path: Path) -> None:
    data = b"\xff\xfe" + TEXT.encode("utf-16-le") if "mark" in encoding else TEXT.encode(encoding)
    path = tmp_path / "kernels.csv"
    path.write_bytes(gzip.compress(data[:9]) + gzip.compress(data[9:]) if zipped else data)
    assert read_text(path, "kernels", "", OptionError) == TEXT.replace("\r\n", "\n")


@pytest.mark.parametrize(
    ("data", "words"),
    [
        *((data, "is not text; give another") for data in (b"\x80\xff", b"a\0b", b"\xff\xfea")),
        *(
            (data, "the gzip file is damaged or cut short; copy it again")
            for data in (ZIPPED[:-9], ZIPPED[:12] + b"\xff" * 20)
        ),
        (gzip.compress(bytes(1025), mtime=0), "holds more than 0 MiB; split the file"),
    ],
)
def test_what_is_no_text(data: bytes, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("iossim.base.user_files._MOST_UNZIPPED_BYTES", 1024)
    path = tmp_path / "file"
    path.write_bytes(data)
    with pytest.raises(OptionError, match=words):
        read_text(path, "kernels", "give another", OptionError)


def test_groups() -> None:
    letters = {"beta": 2, "alpha": 1}
    group: Group[int] = Group("letter {!r} is not known", lambda: letters, letters.get)
    assert group.names() == ["beta", "alpha"]
    assert group.find("alpha") == 1
    assert group.get("gamma") is None
    assert group.states() == []
    with pytest.raises(OptionError, match=r"letter 'alhpa' is not known; did you mean 'alpha'\? known: alpha, beta"):
        group.find("alhpa")
    empty: Group[int] = Group("unknown {!r}", tuple, lambda name: None, error=ModelError)
    with pytest.raises(ModelError, match="unknown 'x'; no installed package adds any"):
        empty.find("x")


def test_the_registry_knows_no_room() -> None:
    told = "import sys, iossim.base.registry; print(sorted(name for name in sys.modules if name.startswith('iossim')))"
    found = subprocess.run([sys.executable, "-c", told], capture_output=True, text=True, check=True).stdout
    assert found.strip() == "['iossim', 'iossim._version', 'iossim.base', 'iossim.base.errors', 'iossim.base.registry']"


def test_threads_change_nothing() -> None:
    generator = np.random.default_rng(1)
    matrix, noise = generator.standard_normal((4000, 40)), generator.standard_normal(4000)
    first = np.full(40, 0.1)

    def fitted() -> bytes:
        found = least_squares(lambda x: np.tanh((matrix * x).sum(axis=1)) - noise, first, loss="soft_l1", max_nfev=8)
        linear = lsq_linear(matrix, noise, bounds=(-0.01, 0.01))
        return bytes(found.x.tobytes() + linear.x.tobytes())

    ends = set()
    for threads in (1, 2, 4):
        with threadpool_limits(limits=threads, user_api="blas"):
            ends.add(fitted())
    assert len(ends) == 1


@pytest.mark.skipif(os.name != "posix", reason="C's output is flushed on POSIX alone")
def test_what_the_solver_prints_is_not_heard(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    def chatty(*args: Any) -> str:
        os.write(1, b"straight out\n")
        ctypes.CDLL(None).printf(b"through C's buffer\n")
        return "solved"

    monkeypatch.setattr(scipy.optimize, "milp", chatty)
    assert solve_integer_program() == "solved"
    print("heard")
    assert capfd.readouterr().out == "heard\n"
