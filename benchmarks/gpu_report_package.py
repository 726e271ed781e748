"""The checkout as a wheel would install it, in a folder of links, and the wheels that an offline machine lacks.

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
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parents[1]
#: Additional imports of the backends' tests.
TESTS_NEED = ("pytest",)


def prepare(out: Path, work: Path, wheels: Path | None) -> dict[str, str]:
    """Environment of sections: iossim of this checkout and the wheels importable.

    iossim is linked in ``out``, each time anew: compiled code is stored under the path of its source, so that the next
    command with the same folder need not compile it again. Raises RuntimeError if pip cannot install the wheels, and
    naming all missing requirements of iossim at once; other versions than required are only printed.
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
    lacks = missing_distributions(_project()["dependencies"], places)
    if any(not lack.installed for lack in lacks):
        raise RuntimeError(
            f"iossim needs {', '.join(map(str, lacks))}, not installed here"
            f"{'' if wheels is None else f' nor in {wheels}'}; where there is a network: pip download --no-deps "
            f"--only-binary=:all: --python-version {sys.version_info.major}.{sys.version_info.minor} "
            f"--platform manylinux_2_28_x86_64 --platform manylinux2014_x86_64 -d DIR {' '.join(lack.pip_argument for lack in lacks)}; then --wheels DIR"
        )
    if lacks:  # it may work all the same
        print(f"note: iossim needs {', '.join(map(str, lacks))}; carry wheels of it", flush=True)
    own = {"PYTHONPATH": os.pathsep.join(places)}
    if not os.access(Path.home(), os.W_OK):
        own["CUPY_CACHE_DIR"] = str(work / "cupy")
    defaults = {
        # This gives enough hardware queues that two streams never share one by accident.
        "CUDA_DEVICE_MAX_CONNECTIONS": "32",
        # Each section has its own process, and with a read-only checkout each would compile all anew.
        "PYTHONPYCACHEPREFIX": str(work / "pycache"),
        # PyTorch's compiler would begin anew in each command: its caches are by default in a temporary folder.
        "TORCHINDUCTOR_CACHE_DIR": str(out / "caches" / "inductor"),
        "TRITON_CACHE_DIR": str(out / "caches" / "triton"),
    }
    return {**defaults, **os.environ, **own}


def linked_package(site: Path) -> Path:
    """A folder with the content of a wheel: the packages, those of the top-level folders inside, and metadata."""
    folders = {"iossim": "iossim"} | {f"iossim.{name}": name for name in ("backends", "hw_profiles", "scenarios")}
    for name in sorted(folders):  # packages before those inside them
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


class Lack(NamedTuple):
    """A required distribution: the required versions, and the installed one; empty if there is none."""

    name: str
    versions: str
    installed: str = ""

    def __str__(self) -> str:
        return f"{self.name}{self.versions} ({self.installed} is installed)" if self.installed else self.name

    @property
    def pip_argument(self) -> str:
        return f"'{self.name}{self.versions}'" if self.installed else self.name


def missing_distributions(requirements: Sequence[str], places: Sequence[str]) -> list[Lack]:
    """Distributions that are missing, or in another version than required, including requirements of requirements.

    They are searched among ``places`` and on Python's own path; conditional requirements are left out.
    """
    # The first of a name is the imported one.
    found_all = reversed(list(distributions(path=[*places, *sys.path])))
    known = {_normal(found.metadata["Name"] or ""): found for found in found_all}
    left, seen, missing = list(_required(requirements)), set[tuple[str, str]](), dict[str, Lack]()
    while left:
        asked = left.pop()
        if asked in seen:
            continue
        seen.add(asked)
        name, versions = asked
        if name not in known:
            missing[name] = Lack(name, versions)
            continue
        if not allows(versions, known[name].version):
            missing[name] = Lack(name, versions, known[name].version)
        left += _required(known[name].requires or [])
    return [missing[name] for name in sorted(missing)]


def allows(versions: str, version: str) -> bool:
    """True for a version within ``>=1.24.1,<1.29``; by the numbers of a release alone, as far as both have them."""
    own = _numbers(version)
    for part in filter(None, versions.split(",")):
        found = re.fullmatch(r"(===|==|!=|~=|>=|<=|>|<)(.+?)(\.\*)?", part)
        if found is None:
            continue
        sign, bound, wild = found[1], _numbers(found[2]), found[3]
        length = len(bound) if wild else max(len(own), len(bound))
        mine, other = _padded(own, length), _padded(bound, length)
        series = len(bound) - 1  # for ~=: all numbers but the last are fixed
        fits = {
            "==": mine == other,
            "===": mine == other,
            "!=": mine != other,
            ">=": mine >= other,
            "<=": mine <= other,
            ">": mine > other,
            "<": mine < other,
            "~=": mine >= other and mine[:series] == other[:series],
        }
        if not fits[sign]:
            return False
    return True


def _numbers(version: str) -> tuple[int, ...]:
    """Numbers of a version: ``1.28.0rc1+cu13`` as (1, 28, 0)."""
    found = re.match(r"\s*v?(?:\d+!)?(\d+(?:\.\d+)*)", version)
    return tuple(map(int, found[1].split("."))) if found else ()


def _padded(numbers: tuple[int, ...], length: int) -> tuple[int, ...]:
    return (*numbers, *[0] * (length - len(numbers)))[:length]


def gpu_lacks(environment: dict[str, str]) -> list[Lack]:
    """Missing requirements of the cuDNN backend; of its two extras (one per version of CUDA), the nearer one's."""
    places = environment["PYTHONPATH"].split(os.pathsep)
    extras: dict[str, list[str]] = _project()["optional-dependencies"]
    lists = [[line.partition(";")[0] for line in extras[name]] for name in ("gpu", "gpu-cuda12")]
    lacks = (missing_distributions(wanted, places) for wanted in lists)
    return min(lacks, key=lambda found: (sum(not lack.installed for lack in found), len(found)))


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
    read = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    return {**read["project"], **read["tool"]["iossim"]}


def _required(requirements: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Names of unconditional requirements, with the versions: ``("numpy", ">=1.26")``."""
    for line in requirements:
        requirement, _, marker = line.partition(";")
        found = re.match(r"\s*([A-Za-z0-9._-]+)\s*(?:\[[^]]*\])?\s*\(?([^()]*)\)?", requirement)
        if found and not marker.strip():
            yield _normal(found[1]), "".join(found[2].split())


def _normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()
