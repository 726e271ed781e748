"""ONNX's own backend cases through import, plan and executor: as many pass as did, and each refusal is one line."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from onnx_backend_cases import NOT_IMPORTED, NOT_RUN, Case, Outcome, round_trip, run_case, run_kind
from onnx_of_op import import_onnx, run_onnxruntime
from seeded_weights import LIGHT_MODELS, write_seeded

from iossim.backends.numpy_reference.backend import evaluate_graph
from iossim.models.passes.pipeline import canonicalise

#: Cases of each kind, how many of them pass, and how many go through import and export to ONNX Runtime.
COUNTS = {
    "node": (1884, 1765, 1424),
    "frozen": (1884, 1791, 1464),
    "simple": (23, 15, 15),
    "pytorch-converted": (82, 82, 82),
    "pytorch-operator": (35, 35, 35),
}
#: Why a case need not pass a round trip.
NO_ROUND_TRIP = (NOT_IMPORTED, NOT_RUN)
#: Whoever installs another onnx has other cases.
ONNX = "1.23"


@pytest.mark.parametrize("kind", ["pytorch-converted", "pytorch-operator"])
def test_models_of_pytorch(kind: str) -> None:
    for run in (run_case, round_trip):
        found = run_kind(kind, run)
        assert [outcome for outcome in found if outcome.reason] == []
        assert len(found) >= COUNTS[kind][0]
    assert not any(outcome.foreign for outcome in found)


@pytest.mark.slow
def test_as_many_cases_pass_and_go_round_as_did() -> None:
    """One test for all kinds: what takes longest is to generate the cases, which each process does for itself."""
    import onnx

    for kind in ("node", "frozen", "simple"):
        found = run_kind(kind)
        for outcome in found:
            assert "\n" not in outcome.detail, outcome.case
            assert outcome.reason not in ("TRACEBACK", "refused otherwise"), (outcome.case, outcome.detail)
        passed = sum(not outcome.reason for outcome in found)
        print(f"{kind}: {passed} of {len(found)} pass")
        if onnx.__version__.startswith(ONNX):
            assert len(found) == COUNTS[kind][0]
        assert passed >= COUNTS[kind][1], kind
    for kind in ("frozen", "simple"):
        found = run_kind(kind, round_trip)
        assert [outcome for outcome in found if outcome.reason not in ("", *NO_ROUND_TRIP)] == []
        passed = sum(not outcome.reason for outcome in found)
        print(f"{kind}: {passed} of {len(found)} round trips")
        assert passed >= COUNTS[kind][2], kind


#: Its made-up weights give a thousand logits of 9.5e9 that should be equal: how their sums are rounded decides the softmax.
DECIDED_BY_ROUNDING = {"test_squeezenet"}


@pytest.mark.slow
@pytest.mark.parametrize("run", [run_case, round_trip])
def test_whole_networks(run: Callable[[Case, Path], Outcome]) -> None:
    found = run_kind("real", run)
    assert [outcome for outcome in found if outcome.reason and outcome.case not in DECIDED_BY_ROUNDING] == []
    assert len(found) == 9


#: Convolutions, then all ops, as the files list them, constants left out.
OPS = {
    "light_bvlc_alexnet": (5, 24),
    "light_densenet121": (121, 668),
    "light_inception_v1": (57, 144),
    "light_inception_v2": (69, 371),
    "light_resnet50": (53, 176),
    "light_shufflenet": (49, 203),
    "light_squeezenet": (26, 66),
    "light_vgg19": (16, 46),
    "light_zfnet512": (5, 22),
}


@pytest.mark.parametrize("name", OPS)
def test_a_light_model_is_read_op_for_op_and_layers_of_equal_fills_stay_apart(name: str) -> None:
    graph = import_onnx(LIGHT_MODELS / f"{name}.onnx")
    assert (len(graph.of_kind["conv"]), len(graph.nodes)) == OPS[name]
    kept = canonicalise(graph).of_kind
    norms = 62 if name == "light_densenet121" else 0  # those that stand before their convolution
    assert (len(kept["conv"]), len(kept.get("batch_norm", ()))) == (OPS[name][0], norms)


@pytest.mark.parametrize("name", ["light_resnet50", "light_shufflenet"])
def test_another_batch_computes_each_image_alone(name, tmp_path):
    path = write_seeded(LIGHT_MODELS / f"{name}.onnx", tmp_path / f"{name}.onnx")
    graph = canonicalise(import_onnx(path, batch=2))
    (image,) = graph.inputs
    assert graph.types[image].shape[0] == 2
    x = np.random.default_rng(1).standard_normal(graph.types[image].shape).astype(np.float32)
    expected = np.concatenate([run_onnxruntime(str(path), {image: x[index : index + 1]})[0] for index in range(2)])
    (found,) = evaluate_graph(graph, {image: x}).values()
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-4 * np.abs(expected).max())
