"""The checkout as an installed wheel would have it, in a folder of links, with the wheels that a machine without network lacks.

Links, not copies: nothing is built, and the checkout may be read-only. Needs the standard library only.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator, Sequence
from importlib.metadata import distributions
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
#: What the tests of the backends import besides.
TESTS_NEED = ("pytest",)


def prepare(out: Path, work: Path, wheels: Path | None) -> dict[str, str]:
    """The environment for sections: iossim of this checkout and the wheels importable.

    iossim is linked in ``out``, anew each time: compiled code is kept under the path of its source, so that the next command
    with the same folder need not compile it again. Raises RuntimeError if pip cannot install the wheels, and naming all at once that iossim needs and that is not there.
    """
    site = out / ".site"
    if site.exists():
        shutil.rmtree(site)
    places = [str(linked_package(site))]
    if wheels is not None:
        _install(wheels, work / "wheels")
        places.append(str(work / "wheels"))
    given = os.environ.get("PYTHONPATH", "")
    places += filter(None, given.split(os.pathsep))
    if absent := missing_distributions(_project()["dependencies"], places):
        names = " ".join(absent)
        raise RuntimeError(
            f"iossim needs {', '.join(absent)}, not installed here{'' if wheels is None else f' nor in {wheels}'}; where there "
            f"is a network: pip download --no-deps --only-binary=:all: --python-version {sys.version_info.major}."
            f"{sys.version_info.minor} --platform manylinux_2_28_x86_64 --platform manylinux2014_x86_64 -d DIR {names}; "
            "then --wheels DIR"
        )
    own = {"PYTHONPATH": os.pathsep.join(places)}
    if not os.access(Path.home(), os.W_OK):
        own["CUPY_CACHE_DIR"] = str(work / "cupy")
    defaults = {
        # Hardware queues enough that two streams never share one by accident.
        "CUDA_DEVICE_MAX_CONNECTIONS": "32",
        # Each section is a process of its own, and where the checkout is read-only each would compile all anew.
        "PYTHONPYCACHEPREFIX": str(work / "pycache"),
    }
    return {**defaults, **os.environ, **own}


def linked_package(site: Path) -> Path:
    """A folder that holds what an installed wheel would: the packages of pyproject.toml's ``package-dir``, and metadata."""
    folders: dict[str, str] = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"][
        "setuptools"
    ]["package-dir"]
    for name in sorted(folders):  # a package before those inside it
        source, place = ROOT / folders[name], site.joinpath(*name.split("."))
        if any(other.startswith(f"{name}.") for other in folders):
            place.mkdir(parents=True)
            for entry in source.iterdir():
                if entry.name != "__pycache__":
                    (place / entry.name).symlink_to(entry)
        else:
            place.symlink_to(source)
    project = _project()
    version = re.search(r'__version__ = "(.+)"', (ROOT / "iossim" / "_version.py").read_text(encoding="utf-8"))
    assert version is not None, "iossim/_version.py names the version"
    metadata = site / f"{project['name']}-{version.group(1)}.dist-info" / "METADATA"
    metadata.parent.mkdir()
    lines = ["Metadata-Version: 2.1", f"Name: {project['name']}", f"Version: {version.group(1)}"]
    lines += [f"Requires-Dist: {line}" for line in project["dependencies"]]
    for extra, wanted in project["optional-dependencies"].items():
        lines.append(f"Provides-Extra: {extra}")
        for line in wanted:
            requirement, _, marker = line.partition(";")
            markers = " and ".join(filter(None, [marker.strip(), f'extra == "{extra}"']))
            lines.append(f"Requires-Dist: {requirement}; {markers}")
    metadata.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return site


def missing_distributions(requirements: Sequence[str], places: Sequence[str]) -> list[str]:
    """The names of those that are not installed, and of what those that are need, among ``places`` and Python's own path.

    Versions are not looked at, nor what is needed only under some condition.
    """
    known = {_normal(found.metadata["Name"] or ""): found for found in distributions(path=[*places, *sys.path])}
    left, seen, missing = [_normal(name) for name in _names(requirements)], set[str](), []
    while left:
        name = left.pop()
        if name in seen:
            continue
        seen.add(name)
        if name in known:
            left += [_normal(needed) for needed in _names(known[name].requires or [])]
        else:
            missing.append(name)
    return sorted(missing)


def gpu_lacks(environment: dict[str, str]) -> list[str]:
    """What the cuDNN backend needs and is not there; of its two extras (one a version of CUDA) what the better one lacks."""
    places = environment["PYTHONPATH"].split(os.pathsep)
    extras: dict[str, list[str]] = _project()["optional-dependencies"]
    lists = [[line.partition(";")[0] for line in extras[name]] for name in ("gpu", "gpu-cuda12")]
    return min((missing_distributions(wanted, places) for wanted in lists), key=len)


def _install(wheels: Path, target: Path) -> None:
    found = sorted(str(path) for path in wheels.glob("*.whl"))
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-index", "--no-deps", "--no-compile"]
    command += ["--find-links", str(wheels), "--target", str(target), *found]
    done = subprocess.run(command, capture_output=True, text=True, check=False) if found else None
    if done is None or done.returncode:
        said = done.stderr.strip().splitlines() if done else ["it holds no wheel"]
        raise RuntimeError(
            f"--wheels {wheels}: {next((line for line in said if 'ERROR' in line), (said or ['pip failed'])[-1])}"
        )


def _project() -> dict[str, Any]:
    found: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    return found


def _names(requirements: Sequence[str]) -> Iterator[str]:
    """The names of what is required without a condition."""
    for line in requirements:
        requirement, _, marker = line.partition(";")
        found = re.match(r"\s*([A-Za-z0-9._-]+)", requirement)
        if found and not marker.strip():
            yield found.group(1)


def _normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()
