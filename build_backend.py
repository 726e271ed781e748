"""Setuptools, with what compiles iossim's functions into a wheel (``setup.py``): an editable install does not.

As a program it makes the libraries: python build_backend.py FOLDER
"""

import sys
from importlib import import_module
from pathlib import Path

from setuptools import build_meta
from setuptools.build_meta import *  # noqa: F403


def get_requires_for_build_wheel(config_settings=None):
    """Also what the compiled modules import, which are translated to C by running them."""
    needed = ["numpy>=1.26", "pydantic>=2.7", "pyyaml>=6.0", "simpy>=4.1", "threadpoolctl>=3.1"]
    return [*build_meta.get_requires_for_build_wheel(config_settings), *needed]


def make_libraries(folder):
    """Make the libraries of all compiled modules of the iossim that is on the path."""
    from iossim.base import by_numba, compiled
    from iossim.base.native import library, translation

    for name in sorted(name for name, text in by_numba.compiled_sources() if b"\n@jit" in text):
        module = name.removesuffix(".py").replace("/", ".")
        import_module(module)
        functions = [each.py_func for each in compiled._of_module[module] if each.may_be_c]
        path = folder / library.library_name(functions, compiled.callee)
        if not translation.make(path, translation.translate(functions, compiled.callee)):
            sys.exit(f"the C compiler did not make {path.name}")


if __name__ == "__main__":
    make_libraries(Path(sys.argv[1]))
