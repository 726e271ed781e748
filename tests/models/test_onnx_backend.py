"""ONNX's own backend cases through import, plan and executor: as many pass as did, and each refusal is one line."""

from __future__ import annotations

import random
from collections import Counter
from functools import cache
from pathlib import Path

import pytest
from onnx_backend_cases import Outcome, load_cases, load_node_cases, node_modules, run_case, run_kind

#: Cases of each kind, and how many of them pass.
COUNTS = {"node": (1884, 1578), "simple": (23, 7), "pytorch-converted": (82, 82), "pytorch-operator": (35, 35)}
#: Whoever installs another onnx has other cases.
ONNX = "1.23"


@cache
def outcomes(kind: str) -> list[Outcome]:
    return run_kind(kind)


def check_refusals(found: list[Outcome]) -> None:
    for outcome in found:
        assert "\n" not in outcome.detail, outcome.case
        assert outcome.reason not in ("TRACEBACK", "refused otherwise"), (outcome.case, outcome.detail)


def test_a_sample_of_the_generated_cases(tmp_path: Path) -> None:
    drawn = random.Random(0)
    cases = drawn.sample(load_node_cases(drawn.sample(node_modules(), 30)), 100)
    found = [run_case(case, tmp_path) for case in cases]
    check_refusals(found)
    assert sum(not outcome.reason for outcome in found) >= 80, Counter(outcome.reason for outcome in found)


@pytest.mark.parametrize("kind", ["pytorch-converted", "pytorch-operator"])
def test_models_of_pytorch(kind: str) -> None:
    found = outcomes(kind)
    assert [outcome for outcome in found if outcome.reason] == []
    assert len(found) >= COUNTS[kind][0]


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["node", "simple"])
def test_as_many_cases_pass_as_did(kind: str) -> None:
    import onnx

    found = outcomes(kind)
    check_refusals(found)
    passed = sum(not outcome.reason for outcome in found)
    print(f"{kind}: {passed} of {len(found)} pass")
    if onnx.__version__.startswith(ONNX):
        assert len(found) == COUNTS[kind][0]
    assert passed >= COUNTS[kind][1]


@pytest.mark.slow
def test_whole_networks(tmp_path: Path) -> None:
    found = [run_case(case, tmp_path) for case in load_cases("real")]
    assert [outcome for outcome in found if outcome.reason] == []
    assert len(found) == 9
