"""Backend torch_cuda where torch, or CUDA, is missing: one line with the remedy."""

from __future__ import annotations

import pytest
from random_networks import random_network

from iossim.backends.torch_cuda import backend as torch_backend
from iossim.backends.torch_cuda.baselines import baseline_names, measure_baselines
from iossim.base.errors import OptionError
from iossim.execution.backend import BackendError, Timing, create_backend, missing_for


def test_a_setting_that_is_not_known_is_refused() -> None:
    for options, named in (({"threads": "2"}, "'threads'"), ({"device": "tpu"}, "'tpu'")):
        with pytest.raises(OptionError, match=named):
            create_backend("torch_cuda", options=options)


def test_what_is_missing_is_one_line_with_a_remedy() -> None:
    reason = missing_for("torch_cuda")
    if not reason:
        pytest.skip("nothing is missing on a machine with CUDA and torch")
    assert "\n" not in reason
    assert "install" in reason or "nvidia-smi" in reason
    with pytest.raises(BackendError, match=r"install|nvidia-smi"):
        create_backend("torch_cuda")


@pytest.mark.torch
def test_a_cuda_build_is_not_told_to_install_one(monkeypatch: pytest.MonkeyPatch) -> None:
    torch = pytest.importorskip("torch")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    assert "nvidia-smi" in missing_for("torch_cuda")
    assert "install" not in missing_for("torch_cuda")
    monkeypatch.setattr(torch.version, "cuda", None)
    assert "install a CUDA build of torch" in missing_for("torch_cuda")


def test_without_torch_even_the_cpu_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch_backend, "find_spec", lambda name: None)
    assert missing_for("torch_cuda") == "torch is not installed; pip install 'iossim[torch]'"
    for device in ("cpu", "cuda"):
        with pytest.raises(BackendError, match="torch is not installed"):
            create_backend("torch_cuda", options={"device": device})
        with pytest.raises(BackendError, match="torch is not installed"):
            baseline_names(device)
    with pytest.raises(BackendError, match="torch is not installed"):
        measure_baselines(random_network(0), [], Timing(), "cpu")
