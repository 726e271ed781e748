"""``gpu_report`` finds iossim as an installed wheel would have it, its files import each other in one direction."""

import ast
import runpy
import subprocess
import sys
import zipfile
from graphlib import TopologicalSorter
from pathlib import Path
from unittest.mock import patch

import pytest

ROOT = Path(__file__).resolve().parents[2]


def packages_of_the_wheel(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What setup.py gives to setuptools."""
    monkeypatch.chdir(ROOT)
    given: dict[str, list[str]] = {}
    with patch("setuptools.setup", given.update):
        runpy.run_path("setup.py")
    return given["packages"]


def tiny_wheel(folder: Path, name: str, *requires: str) -> None:
    folder.mkdir(exist_ok=True)
    info = f"{name}-1.0.dist-info"
    needs = "".join(f"Requires-Dist: {line}\n" for line in requires)
    with zipfile.ZipFile(folder / f"{name}-1.0-py3-none-any.whl", "w") as wheel:
        wheel.writestr(f"{name}.py", "ANSWER = 42\n")
        wheel.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n{needs}")
        wheel.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        wheel.writestr(f"{info}/RECORD", "")


@pytest.mark.slow
def test_every_package_of_a_wheel_is_importable_and_so_are_its_data(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from gpu_report_package import prepare

    environment = prepare(tmp_path, tmp_path / "work", None)
    packages = packages_of_the_wheel(monkeypatch)
    assert {"iossim.scenarios", "iossim.backends.cupy_cudnn", "iossim.hw_profiles"} <= set(packages)
    script = (
        "import sys; from importlib.util import find_spec; from importlib.metadata import version, requires\n"
        "import iossim.hardware.names as devices, iossim.study.scenario_file as studies\n"
        "print(*(find_spec(name).origin for name in sys.argv[1:]), sep='\\n')\n"
        "print(version('iossim'), len(requires('iossim')), len(devices.device_names()), len(studies.scenario_names()))"
    )
    command = [sys.executable, "-c", script, *packages]
    done = subprocess.run(command, env=environment, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    *origins, facts = done.stdout.splitlines()
    assert len(origins) == len(packages)
    assert all(origin.startswith(str(tmp_path)) for origin in origins)
    version, requirements, devices, studies = facts.split()
    assert version
    assert min(int(requirements), int(devices), int(studies)) > 10


def test_wheels_are_importable(tmp_path: Path) -> None:
    from gpu_report_package import prepare

    tiny_wheel(tmp_path / "wheels", "tiny_wheel")
    environment = prepare(tmp_path, tmp_path / "work", tmp_path / "wheels")
    again = prepare(tmp_path, tmp_path / "again", tmp_path / "wheels")
    assert again["PYTHONPATH"].split(":")[0] == environment["PYTHONPATH"].split(":")[0]
    script = "import iossim, tiny_wheel; print(tiny_wheel.ANSWER)"
    done = subprocess.run(
        [sys.executable, "-c", script], env=environment, cwd=tmp_path, capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == ["42"]


def test_wheels_that_cannot_be_installed_are_one_line(tmp_path: Path) -> None:
    from gpu_report_package import prepare

    (tmp_path / "empty").mkdir()
    with pytest.raises(RuntimeError, match="it holds no wheel"):
        prepare(tmp_path, tmp_path / "one", tmp_path / "empty")
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "tiny-1.0-cp27-cp27m-win32.whl").write_bytes(b"")
    with pytest.raises(RuntimeError, match="not a supported wheel on this platform"):
        prepare(tmp_path, tmp_path / "two", tmp_path / "other")


def test_all_that_is_missing_is_told_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import gpu_report_package

    # Of a wheel that is there, what it needs in turn; not what it needs only under a condition.
    needs = ("Deep_Down>=2", "of-windows; sys_platform == 'win32'")
    tiny_wheel(tmp_path / "wheels", "upper", *needs)
    wanted = ["numpy>=1.26", "upper", "never.heard-of ==1.0"]
    monkeypatch.setattr(gpu_report_package, "_project", lambda: {"dependencies": wanted})
    monkeypatch.setattr(gpu_report_package, "linked_package", lambda site: site)
    with pytest.raises(RuntimeError) as caught:
        gpu_report_package.prepare(tmp_path, tmp_path / "work", tmp_path / "wheels")
    said = str(caught.value)
    assert "iossim needs deep-down, never-heard-of, not installed here" in said
    assert said.endswith("-d DIR deep-down never-heard-of; then --wheels DIR")
    assert "\n" not in said


def test_what_the_gpu_backend_lacks_is_of_the_nearer_cuda(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from gpu_report_package import gpu_lacks

    # The environment of the tests may have the packages of the other CUDA.
    monkeypatch.setattr(sys, "path", [place for place in sys.path if not place.endswith("site-packages")])
    for name in ("cupy_cuda12x", "nvidia_cuda_nvrtc_cu12", "nvidia_cudnn_cu12", "nvidia_ml_py"):
        info = tmp_path / f"{name}-1.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    lacks = gpu_lacks({"PYTHONPATH": str(tmp_path)})
    absent = {lack.name for lack in lacks if not lack.installed}
    assert absent <= {"nvidia-cudnn-frontend"}
    # What is there is all of version 1.0.
    wrong = {lack.name: lack for lack in lacks if lack.installed}
    assert set(wrong) == {"cupy-cuda12x", "nvidia-cuda-nvrtc-cu12", "nvidia-cudnn-cu12", "nvidia-ml-py"}
    assert str(wrong["nvidia-cudnn-cu12"]) == "nvidia-cudnn-cu12>=9.10 (1.0 is installed)"


@pytest.mark.parametrize(
    ("versions", "good", "bad"),
    [
        (">=1.24.1,<1.29", ("1.24.1", "1.28.9+cu13"), ("1.23.0", "1.29", "1.29.0")),
        ("==2.41.*", ("2.41.5", "2.41"), ("2.40.9", "2.4")),
        ("==2.41.5", ("2.41.5",), ("2.41.4",)),
        ("~=1.4.2", ("1.4.2", "1.4.9"), ("1.5.0", "1.4.1")),
        ("!=1.5,>1.0", ("1.4",), ("1.5", "1.0")),
        ("", ("0.1",), ()),
    ],
)
def test_versions_are_compared_by_their_numbers(versions: str, good: tuple[str, ...], bad: tuple[str, ...]) -> None:
    from gpu_report_package import allows

    assert [version for version in (*good, *bad) if allows(versions, version)] == [*good]


def test_what_is_there_in_another_version_than_is_needed_is_printed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The likeliest mistake in carrying wheels: two that must be of exactly one release."""
    import gpu_report_package

    tiny_wheel(tmp_path / "wheels", "tiny_upper", "tiny-core==2.41.5")
    tiny_wheel(tmp_path / "wheels", "tiny_core")
    monkeypatch.setattr(gpu_report_package, "_project", lambda: {"dependencies": ["tiny-upper>=1"]})
    monkeypatch.setattr(gpu_report_package, "linked_package", lambda site: site)
    gpu_report_package.prepare(tmp_path, tmp_path / "work", tmp_path / "wheels")
    expected = ["note: iossim needs tiny-core==2.41.5 (1.0 is installed); carry wheels of it"]
    assert capsys.readouterr().out.splitlines() == expected


def test_compilers_keep_what_they_made_in_the_folder_of_results(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By default they do in a folder for temporary files, which each command deletes at its end."""
    from gpu_report_package import prepare

    names = ("TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR")
    for name in names:
        monkeypatch.delenv(name, raising=False)
    first, second = (prepare(tmp_path, tmp_path / work, None) for work in ("one", "two"))
    for name in names:
        assert first[name] == second[name]
        assert Path(first[name]).is_relative_to(tmp_path / "caches")


FILES = {path.stem: path for path in sorted((ROOT / "benchmarks").glob("gpu_report*.py"))}


def imported(name: str, top_level: bool = False) -> set[str]:
    """The first part of each name that a file imports, wherever in it unless only at its top level."""
    tree = ast.parse(FILES[name].read_text())
    nodes = tree.body if top_level else ast.walk(tree)
    found: set[str] = set()
    for node in nodes:
        if isinstance(node, ast.Import):
            found |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found.add(node.module.partition(".")[0])
    return found


def test_imports_go_round_in_no_circle() -> None:
    graph = {name: imported(name) & set(FILES) for name in FILES}
    order = list(TopologicalSorter(graph).static_order())  # raises CycleError
    assert order[-1] == "gpu_report"
    assert not [name for name in FILES if "gpu_report" in graph[name]]


def test_what_begins_needs_the_standard_library_only() -> None:
    left, seen = ["gpu_report"], set[str]()
    while left:
        name = left.pop()
        seen.add(name)
        others = imported(name, top_level=True)
        assert others <= {*sys.stdlib_module_names, *FILES}, name
        left += (others & set(FILES)) - seen
    assert len(seen) > 5
