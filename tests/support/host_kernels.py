"""Compiles CUDA kernels for the host, so that their text is tested where there is no GPU.

``host_kernels.cpp`` stands for CUDA around a kernel's text.
"""

import ctypes
import hashlib
import re
import shutil
import subprocess
import tempfile
from collections.abc import Callable
from functools import cache
from pathlib import Path

import numpy as np
import pytest

from iossim.base.user_folders import user_cache

#: Stands for CUDA around a kernel.
SHIM = Path(__file__).with_suffix(".cpp")
#: Accesses that are not aligned trap, as on a GPU.
ALIGNED = ("-fsanitize=alignment", "-fsanitize-undefined-trap-on-error")
FLAGS = ("-std=c++17", "-O0", *ALIGNED, "-shared", "-fPIC", "-nostdlib")
#: Without the library of C++, which takes as long to link as all else.
LIBRARIES = ("-lpthread", "-lm", "-lc", "-lgcc")

HostKernel = Callable[[int, int, tuple[np.generic, ...]], None]


@cache
def host_kernel(source: str, name: str) -> HostKernel:
    """Kernel ``name`` as a function of blocks, threads of a block, and arguments of the types that it declares."""
    compiler = shutil.which("g++")
    if compiler is None:
        pytest.skip("g++ is not installed: kernels cannot be compiled for the host")
    parameters = re.search(rf"{name}\((.*?)\)\s*{{", source, re.DOTALL)
    assert parameters is not None, f"{name} is not in its source"
    types = [re.sub(r"\w+\s*$", "", parameter).strip() for parameter in parameters[1].split(",")]
    arguments = ", ".join(f"*({kind}*)a[{index}]" for index, kind in enumerate(types))
    text = f"{source}\n#define CALL {name}({arguments})\n"
    flags = (*FLAGS, *["-DTOGETHER"] * ("__syncthreads" in source))
    key = hashlib.sha256("\0".join((*flags, *LIBRARIES, SHIM.read_text(), text)).encode()).hexdigest()[:20]
    path = folder() / f"{key}.so"
    if not path.exists():
        with tempfile.TemporaryDirectory(dir=folder()) as made:
            (Path(made) / "kernel.cu").write_text(text)
            command = [compiler, *flags, f"-I{made}", str(SHIM), "-o", "kernel.so", *LIBRARIES]
            built = subprocess.run(command, cwd=made, capture_output=True, text=True, check=False)
            assert built.returncode == 0, f"{built.stderr}\n{text}"
            (Path(made) / "kernel.so").replace(path)
    function = ctypes.CDLL(str(path)).run
    sizes = [8 if "*" in kind or "long long" in kind else 4 for kind in types]

    def run(blocks: int, threads: int, given: tuple[np.generic, ...]) -> None:
        assert [item.itemsize for item in given] == sizes, f"{name} takes {types}, not {given}"
        cells = [np.array(item) for item in given]
        pointers = (ctypes.c_void_p * len(cells))(*(cell.ctypes.data for cell in cells))
        function(ctypes.c_uint(blocks), ctypes.c_uint(threads), pointers)

    return run


@cache
def folder() -> Path:
    """Where compiled kernels are kept, for other workers and later runs."""
    path = user_cache() / "host-kernels"
    path.mkdir(parents=True, exist_ok=True)
    return path
