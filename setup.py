"""List the packages, and where those under the three top-level folders lie; compile what a wheel ships compiled.

Everything else is in pyproject.toml. Where there is no C compiler, numba is one more dependency.

``backends/``, ``hw_profiles/`` and ``scenarios/`` stand at the top of the repository and install inside the package, as
``iossim.backends``, ``iossim.hw_profiles`` and ``iossim.scenarios``, so that a user's site-packages gets one name only.
A static list would miss new subpackages.

A checkout finds the three by itself (``iossim/__init__.py``), so that an editable install is the path of the checkout.
With finders of setuptools, Python would take a folder ``iossim`` in the working directory, such as the checkout, for
the package.
"""

import os
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

from setuptools import find_packages, setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_py import build_py

packages = ["iossim", *(f"iossim.{name}" for name in find_packages("iossim"))]
folders = {"": "."}
if "editable_wheel" not in sys.argv:
    packages += ["iossim.backends", *(f"iossim.backends.{name}" for name in find_packages("backends"))]
    packages += ["iossim.hw_profiles", "iossim.scenarios"]
    folders |= {f"iossim.{name}": name for name in ("backends", "hw_profiles", "scenarios")}

with (Path(__file__).parent / "pyproject.toml").open("rb") as file:
    DEPENDENCIES = tomllib.load(file)["tool"]["iossim"]["dependencies"]
#: As ``iossim.base.native.library.compiler`` looks for one.
COMPILER = next(filter(shutil.which, filter(None, [os.environ.get("IOSSIM_COMPILER"), "cc", "gcc", "clang"])), None)
#: The wheel of a machine with a compiler has compiled code, or its user has the compiler.
NUMBA = "numba>=0.60" if COMPILER is None else "numba>=0.60; sys_platform != 'linux'"


class BuildWithLibraries(build_py):
    """The package with its compiled functions as libraries, if they can be made here."""

    def run(self):
        super().run()
        if self.editable_mode or COMPILER is None or not sys.platform.startswith("linux"):
            return
        folder = Path(self.build_lib).resolve()
        made = folder / "iossim" / "base" / "native" / "shipped"
        shutil.rmtree(made, ignore_errors=True)
        made.mkdir()
        path = os.pathsep.join(filter(None, [str(folder), os.environ.get("PYTHONPATH")]))
        environment = {**os.environ, "PYTHONPATH": path, "PYTHONDONTWRITEBYTECODE": "1"}
        make = [sys.executable, str(Path(__file__).resolve().parent / "build_backend.py"), str(made)]
        done = subprocess.run(make, cwd=folder, env=environment, check=False)
        if done.returncode:
            print("iossim's functions were not compiled; its first command will do it", file=sys.stderr)
            shutil.rmtree(made)


class PlatformWheel(bdist_wheel):
    """A wheel of this platform, for every version of Python, if it has libraries."""

    def run(self):
        self.run_command("build")
        lib = Path(self.get_finalized_command("build_py").build_lib)
        self.root_is_pure = not any(lib.rglob("shipped/*.so"))
        self.distribution.has_ext_modules = lambda: not self.root_is_pure  # where the package is installed
        super().run()

    def get_tag(self):
        tag = super().get_tag()
        return tag if self.root_is_pure else ("py3", "none", tag[2])


setup(
    packages=packages,
    package_dir=folders,
    install_requires=[*DEPENDENCIES, NUMBA],
    cmdclass={"build_py": BuildWithLibraries, "bdist_wheel": PlatformWheel},
)
