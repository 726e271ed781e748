"""Five ways in, as a new user goes them: each script of examples/ways_in runs as it stands, in an environment of its own.

The plugin is built and installed from a package index, by .ci/package.
"""

import os
import subprocess
import sysconfig
import time
import venv
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
WAYS = ROOT / "examples" / "ways_in"
#: What each way ends with, of its output or of its files.
ENDS_WITH = {
    "onnx_file.sh": "out/index.html",
    "pytorch_module.py": "outputs differ by at most",
    "choosing_a_gpu.sh": "which_gpu/report.html",
    "thesis_figure.sh": "schedules_compared/report.html",
}


@pytest.fixture
def environment(tmp_path: Path) -> Path:
    """A fresh environment that sees the packages of this one, so that no package index is needed."""
    folder = tmp_path / "environment"
    venv.create(folder, symlinks=True)
    paths = {name: sysconfig.get_paths(vars={"base": str(folder)})[name] for name in ("purelib", "scripts")}
    own = sysconfig.get_paths()["purelib"]
    (Path(paths["purelib"]) / "packages.pth").write_text(f"import site; site.addsitedir({own!r})\n")
    command = Path(paths["scripts"]) / "iossim"
    command.write_text(f"#!{folder}/bin/python\nfrom iossim.__main__ import main\n\nmain()\n")
    command.chmod(0o755)
    return folder


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.torch if "torch" in name else ()) for name in ENDS_WITH]
)
def test_a_way_in(name: str, environment: Path, tmp_path: Path) -> None:
    if name.endswith(".py"):
        pytest.importorskip("torch")
    here = tmp_path / "here"
    here.mkdir()
    variables = os.environ | {"IOSSIM_DATA_DIR": str(tmp_path / "data"), "COLUMNS": "80"}
    variables |= {"PATH": f"{environment / 'bin'}{os.pathsep}{os.environ['PATH']}"}
    command = ["python" if name.endswith(".py") else "bash", str(WAYS / name), str(ROOT)]
    begun = time.monotonic()
    done = subprocess.run(command, cwd=here, env=variables, capture_output=True, text=True, check=False)
    print(f"{name}: {time.monotonic() - begun:.0f} s")  # pytest -rP shows it
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    if (end := ENDS_WITH[name]).endswith(".html"):
        assert (here / end).stat().st_size > 10_000
    else:
        assert end in done.stdout


def test_every_way_is_run() -> None:
    assert {path.name for path in WAYS.iterdir()} - {"README.md"} == {*ENDS_WITH, "plugin.sh"}
    assert "ways_in/plugin.sh" in (ROOT / ".ci" / "package").read_text(encoding="utf-8")
    read = (WAYS / "README.md").read_text(encoding="utf-8")
    assert all(name in read for name in (*ENDS_WITH, "plugin.sh"))
