"""Fixtures shared by all tests."""

import ctypes
import os
import signal
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest

try:
    from hypothesis import settings
except ImportError:  # on a machine with a GPU, say: what needs one does without
    settings = None

# Workers of xdist share the cores: threads of BLAS in each would wait for one another. NumPy reads it when it is loaded.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

# Fixtures of the conformance classes, as a project of somebody else asks for them.
pytest_plugins = ["iossim.testing"]

# Projects of others, which tests install and run.
collect_ignore = ["broken_plugins", "user_project"]

# No test asserts seconds: the first example of a test may compile for a while. In CI every run draws the same examples.
# Thirty a test, so that all tests are run often; --hypothesis-profile=default tries more.
if settings is not None:
    settings.register_profile("iossim", deadline=None, max_examples=30, derandomize=bool(os.environ.get("CI")))
    settings.load_profile("iossim")


@cache
def cuda_devices() -> int:
    """How many GPUs the CUDA driver finds; 0 without a driver."""
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return 0
    found = ctypes.c_int(0)
    return found.value if driver.cuInit(0) == 0 and driver.cuDeviceGetCount(ctypes.byref(found)) == 0 else 0


def pytest_runtest_setup(item: pytest.Item) -> None:
    # The double of CUDA (tests/benchmarks/cuda_double) runs those of the cuDNN backend without one; PyTorch has no double.
    doubled = "CUDA_DOUBLE" in os.environ and item.get_closest_marker("torch") is None
    has_device = doubled or cuda_devices()
    if item.get_closest_marker("gpu") is not None and not has_device:
        pytest.skip("no CUDA device")


@pytest.fixture(scope="session", autouse=True)
def _no_data_of_the_user(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Devices and measurements of whoever runs the tests stay out of them, and theirs out of the user's folder."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("IOSSIM_DATA_DIR", str(tmp_path_factory.mktemp("data")))
        yield


@pytest.fixture(scope="session", autouse=True)
def _interrupts_are_heard() -> None:
    """A process that a shell starts in the background ignores SIGINT, and so do its children: some tests send it."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session")
def shared() -> Path:
    """The folder of reference data: ``$IOSSIM_SHARED``, or ``shared`` beside the checkout."""
    path = Path(os.environ.get("IOSSIM_SHARED", Path(__file__).resolve().parents[2] / "shared"))
    if not (path / "data").is_dir():
        pytest.skip(f"no reference data at {path}; set IOSSIM_SHARED to its folder")
    return path


#: Files with tests of minutes, the longest first.
LONGEST = ("test_option_combinations.py", "test_documents.py", "test_quoted_figures.py", "test_shipped_scenarios.py")
#: Markers of longer tiers, and files with prefixes of the names of their tests.
TIERS = (("slow", "slow.txt"), ("slow", "exhaustive.txt"), ("exhaustive", "exhaustive.txt"))


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The files with the longest tests come first: no worker is left alone with one at the end."""
    for marker, name in TIERS:
        lines = (Path(__file__).resolve().parents[1] / ".ci" / name).read_text().splitlines()
        prefixes = tuple(line for line in lines if line.startswith("tests/"))
        for item in (item for item in items if item.nodeid.startswith(prefixes)):
            item.add_marker(marker)
    place = {name: number for number, name in enumerate(LONGEST)}
    items.sort(key=lambda item: place.get(item.path.name, len(LONGEST)))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """A worker has a run of neighbours, whose fixtures it makes once, and one that is done takes from another's end."""
    if config.getoption("dist") != "load":
        return None
    from xdist.scheduler import WorkStealingScheduling

    return WorkStealingScheduling(config, log)


def pytest_report_header() -> str:
    return "" if settings is not None else "hypothesis is not installed: files of property tests are left out"


def pytest_ignore_collect(collection_path: Path) -> bool | None:
    """Without hypothesis, the files that import it are left out."""
    if settings is not None or collection_path.suffix != ".py":
        return None
    return "from hypothesis import" in collection_path.read_text(encoding="utf-8") or None
