#!/usr/bin/env python3
"""Check that the wheel holds every tracked file of the product and nothing else, and that the sdist holds what builds it.

python .ci/package_contents.py SOURCE DIST
"""

from __future__ import annotations

import re
import subprocess
import sys
import tarfile
import zipfile
from collections import Counter
from pathlib import Path

#: Where the folders of the product are installed.
FOLDERS = {
    "iossim": "iossim",
    "backends": "iossim/backends",
    "hw_profiles": "iossim/hw_profiles",
    "scenarios": "iossim/scenarios",
}
#: What lies beside the product and is no part of it: what profiles were fitted to.
MEASUREMENTS = "hw_profiles/measurements/"
#: Compiled functions, which the build makes.
LIBRARY = re.compile(r"iossim/base/native/shipped/iossim\.[a-z_.]+-[0-9a-f]{16}\.so")
#: What builds a wheel from an sdist, and what a reader of one looks for.
BESIDE = ("README.md", "LICENSE", "pyproject.toml", "setup.py", "build_backend.py")


def product(source: Path) -> dict[str, str]:
    """The place of each tracked file of the product in the wheel, by its place in the repository."""
    tracked = subprocess.run(["git", "ls-files", *FOLDERS], cwd=source, check=True, capture_output=True, text=True)
    names = [name for name in tracked.stdout.splitlines() if not name.startswith(MEASUREMENTS)]
    return {name: f"{FOLDERS[name.partition('/')[0]]}/{name.partition('/')[2]}" for name in names}


def problems(wanted: dict[str, str], wheel: set[str], sdist: set[str]) -> list[str]:
    inside = {name for name in wheel if ".dist-info/" not in name and not LIBRARY.fullmatch(name)}
    return [
        *(f"the wheel lacks {name}" for name in sorted(set(wanted.values()) - inside)),
        *(f"the wheel holds {name}, which is no file of the product" for name in sorted(inside - set(wanted.values()))),
        *(f"the sdist lacks {name}" for name in sorted({*wanted, *BESIDE} - sdist)),
    ]


def main(source: Path, dist: Path) -> int:
    (wheel,), (sdist,) = dist.glob("*.whl"), dist.glob("*.tar.gz")
    with zipfile.ZipFile(wheel) as archive:
        installed = set(archive.namelist())
    with tarfile.open(sdist) as archive:
        sources = {member.name.partition("/")[2] for member in archive if member.isfile()}
    found = problems(product(source), installed, sources)
    kinds = Counter(Path(name).suffix or name for name in installed)
    print(f"{wheel.name}: {wheel.stat().st_size / 1e6:.1f} MB, {len(installed)} files: {dict(kinds.most_common())}")
    print(f"{sdist.name}: {sdist.stat().st_size / 1e6:.1f} MB, {len(sources)} files")
    for each in found:
        print(each, file=sys.stderr)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), Path(sys.argv[2])))
