"""The tests that need a GPU are found on a machine that has little more than pytest: a GPU's time is not lost to an import."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent


def test_tests_of_a_gpu_need_no_hypothesis(tmp_path: Path) -> None:
    (tmp_path / "hypothesis.py").write_text('raise ImportError("No module named hypothesis")')
    places = os.pathsep.join([str(tmp_path), *filter(None, [os.environ.get("PYTHONPATH", "")])])
    command = [sys.executable, "-m", "pytest", "-q", "-m", "gpu", "--collect-only", "-p", "no:cacheprovider", str(HERE)]
    environment = {**os.environ, "PYTHONPATH": places, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTEST_ADDOPTS": ""}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment, cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("test_on_gpu.py::") > 50
    assert "error" not in done.stdout.lower()
