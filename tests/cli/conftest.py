"""Each test of a command has a folder of its own; the backend of made-up times is found by its name, ``fake``."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import iossim.backends

_MODULE = """
from fake_backend import FakeBackend

from iossim.base.errors import OptionError


def missing():
    return ""


def create(precision, engine, options):
    for name in options:
        if name != "seed":
            raise OptionError(f"backend fake has no option {name!r}; leave it out")
    return FakeBackend(int(options.get("seed", 0)), str(engine), noise=0.02, options=tuple(sorted(options.items())))
"""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder that a test runs in, with the data of its user in ``data``."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("IOSSIM_DATA_DIR", str(tmp_path / "data"))
    return tmp_path


@pytest.fixture
def fake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The backend's name."""
    folder = tmp_path / "backends" / "fake"
    folder.mkdir(parents=True)
    (folder / "__init__.py").touch()
    (folder / "backend.py").write_text(_MODULE)
    monkeypatch.setattr(iossim.backends, "__path__", [*iossim.backends.__path__, str(folder.parent)])
    yield "fake"
    for name in [name for name in sys.modules if name.startswith("iossim.backends.fake")]:
        del sys.modules[name]
