"""``iossim doctor``: what is there, what is missing, and the remedy."""

import os
import platform
from importlib import metadata
from pathlib import Path

import numpy as np
import pytest
from command_line import printed, printed_json, refused
from graph_builders import builder_with

from iossim.cli import doctor
from iossim.execution import backend
from iossim.execution.backend import backend_names
from iossim.hardware import names, nvidia_smi
from iossim.ir.ops.softmax import Hardmax
from iossim.ir.ops.unary import Relu
from iossim.models.onnx.export import write_onnx

H100 = "NVIDIA H100 80GB HBM3, 580.159.04, 9.0, 81559, 345, 1980, 2619, 69.61, 700.00, 31"


@pytest.fixture(autouse=True)
def _own_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("IOSSIM_CACHE_DIR", str(tmp_path / "cache"))


def test_json_says_what_is_there(tmp_path: Path) -> None:
    (tmp_path / "cache").mkdir()
    found = printed_json("doctor --json")
    assert found["machine"]["python"].endswith(platform.python_version())
    assert found["machine"]["cores"] == os.cpu_count()
    assert 1 <= found["machine"]["usable_cores"] <= os.cpu_count()
    assert found["machine"]["memory_gib"] > 0
    assert found["libraries"]["numpy"] == np.__version__
    assert [row["name"] for row in found["backends"]] == backend_names()
    assert next(row for row in found["backends"] if row["name"] == "numpy_reference")["usable"]
    assert found["extras"]["test"] == {"installed": True, "missing": []}
    assert found["devices"]["profiles"] > 10
    folders = found["folders"]
    assert folders["cache"] == {"path": str(tmp_path / "cache"), "exists": True}
    assert folders["data"] == {"path": str(tmp_path / "data"), "exists": False}
    assert Path(folders["measurement store"]["path"]).parent == tmp_path / "data"


def test_a_backend_that_cannot_run_is_told_with_its_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    lacks = {"torch_cuda": "torch is not installed; pip install 'iossim[torch]'"}
    monkeypatch.setattr(backend, "missing_for", lambda name: lacks.get(name, ""))
    rows = printed_json("doctor --json")["backends"]
    assert {row["name"]: row["missing"] for row in rows if not row["usable"]} == lacks
    text = printed("doctor")
    assert "torch is not installed; pip install 'iossim[torch]'" in text
    assert text.count("usable\n") == len(backend_names()) - 1


def test_gpus_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nvidia_smi, "gpus", lambda: nvidia_smi.parse(H100))
    (gpu,) = printed_json("doctor --json")["gpus"]
    assert (gpu["name"], gpu["driver_version"]) == ("NVIDIA H100 80GB HBM3", "580.159.04")
    assert "GPU: NVIDIA H100 80GB HBM3, compute capability 9.0, driver 580.159.04" in printed("doctor")
    monkeypatch.setattr(nvidia_smi, "gpus", lambda: ())
    assert printed_json("doctor --json")["gpus"] == []
    assert "nvidia-smi finds no NVIDIA GPU" in printed("doctor")


def test_extras_say_what_they_lack(monkeypatch: pytest.MonkeyPatch) -> None:
    lines = [
        "numpy>=1.26",
        'no-such-library>=2; extra == "far"',
        "onnx>=1; sys_platform == 'linux' and extra == 'near'",
    ]
    monkeypatch.setattr(metadata, "requires", lambda name: lines)
    found = printed_json("doctor --json")
    expected = {"far": {"installed": False, "missing": ["no-such-library"]}, "near": {"installed": True, "missing": []}}
    assert found["extras"] == expected
    assert list(found["libraries"]) == ["no-such-library", "numpy", "onnx"]
    told = printed("doctor")
    assert "lacks no-such-library" in told
    assert told.partition("\nLibraries\n")[2].split()[:2] == ["numpy", f"{np.__version__},"]


def test_a_checkout_that_is_not_installed_has_no_extras(monkeypatch: pytest.MonkeyPatch) -> None:
    def absent(name: str) -> list[str]:
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "requires", absent)
    found = printed_json("doctor --json")
    assert found["extras"] == found["libraries"] == {}
    assert "Extras" not in printed("doctor")


def test_memory_that_the_system_does_not_tell_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    def unknown(name: str) -> int:
        raise ValueError(name)

    monkeypatch.setattr(os, "sysconf", unknown)
    assert doctor.machine()["memory_gib"] is None


def test_ops_of_a_model_that_no_gpu_computes_are_listed(tmp_path: Path) -> None:
    """By what they are and why, without a GPU; of a model only."""
    b, x = builder_with("hard", x=(2, 8))
    for index in range(4):
        x = b.add(Hardmax(), b.add(Relu(), x), name=f"hard{index}")
    path = tmp_path / "hard.onnx"
    write_onnx((network := b.network([x])).graph, path, name="hard", network=network)
    (rows,) = (found := printed_json(f"doctor {path} --json")["model"])["on_the_host"].values()
    assert (found["name"], found["ops"], [row["kind"] for row in rows]) == ("hard", 8, ["hardmax"] * 4)
    assert set(rows[0]) == {"op", "kind", "unit", "reason"}
    text = printed(f"doctor {path} --dtype fp16")
    assert "Ops of hard that cupy_cudnn computes on the host: 4 of 8\n  hardmax: no kernel computes hardmax (" in text
    assert " and 1 more)" in text
    assert "computes on the host: none of" in printed("doctor squeezenet")
    assert "host" not in printed_json("doctor --json")
    assert "options of reading a model need a MODEL" in refused("doctor --dtype fp16")
    assert "'now'" in refused("doctor now")


def test_the_profile_of_this_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(names, "device_names", lambda: ["t4"])
    assert printed_json("doctor --json")["devices"] == {"profiles": 1, "cpu_profile": False}
    assert "CPU has no profile yet; 'iossim profile" in printed("doctor")
    monkeypatch.setattr(names, "device_names", lambda: ["t4", "cpu"])
    assert printed_json("doctor --json")["devices"] == {"profiles": 2, "cpu_profile": True}
    assert "no profile yet" not in printed("doctor")
