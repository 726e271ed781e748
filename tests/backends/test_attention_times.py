"""How long fused attention takes: its products and exponentials bind, and networks gain by it where it is."""

from __future__ import annotations

import pytest

from iossim.api import optimize
from iossim.backends.simulator.kernel_model import KernelModel
from iossim.hardware.load import device
from iossim.hardware.lowering.kernel import Issue, Libraries, WorkClass
from iossim.hardware.lowering.target import step_candidates
from iossim.hardware.profile import with_values
from iossim.ir.types import Precision
from iossim.measurements.operator_kinds import parse_description
from iossim.models.load import load

EXPONENTIALS_A_CLOCK = 16


def attention_us(name: str = "h100-sxm", values: dict[str, float] | None = None, **sizes: int) -> float:
    given = {"batch": 4, "heads": 16, "queries": 4096, "keys": 4096, "features": 64} | sizes
    text = " ".join(f"{key}={value}" for key, value in given.items())
    step = parse_description(f"attention {text}", Precision.FP16).step()
    model = KernelModel(with_values(device(name), values or {}), Issue.GRAPH, Libraries.COMPILED)
    candidate, (price, *_) = model.fastest(step_candidates(step, model.profile))
    assert candidate.kernels[0].work_class is WorkClass.ATTENTION
    return float(price.alone_us)


@pytest.mark.parametrize("name", ["a100-sxm-40gb", "rtx-3090", "l4", "h100-sxm", "h200-sxm", "b200"])
def test_neither_products_nor_exponentials_are_faster_than_the_device(name: str) -> None:
    profile = device(name)
    pairs = 4 * 16 * 4096 * 4096
    tflops = profile.reduced_precision_tflops(Precision.FP16)
    assert tflops
    products_us = 4 * 64 * pairs / tflops / 1e6
    exponentials_us = pairs / (EXPONENTIALS_A_CLOCK * profile.sm_count * profile.boost_clock_ghz * 1e3)
    assert max(products_us, exponentials_us) < attention_us(name) < 3 * (products_us + exponentials_us)


def test_exponentials_are_a_part_that_features_do_not_change() -> None:
    whole_us = attention_us()
    assert 1.2 < attention_us(features=128) / whole_us < 1.9
    apart = {"attention_overlap_norm": 1.0}, {"attention_overlap_norm": 10.0}
    added_us, hidden_us = (attention_us(values=each) for each in apart)
    assert hidden_us < whole_us < added_us
    assert 0.49 < attention_us(keys=2048) / whole_us < 0.55


def test_a_layer_gains_where_libraries_have_it_and_no_other_does() -> None:
    def latency_us(name: str, units: str, dtype: str = "fp16", engine: str = "graph") -> float:
        network = load("bert_layer", dtype=dtype, units=units)
        return optimize(network, name, engine=engine, scheduler="sequential").latency_us

    for name in ("a100-sxm-40gb", "h100-sxm"):
        assert latency_us(name, "fused") < latency_us(name, "model")
    # Fused or not, the kernels are the same; what L2 has lost of an input is told by units, in eighths.
    assert latency_us("v100-sxm2", "fused") == pytest.approx(latency_us("v100-sxm2", "model"), rel=2e-3)
    assert latency_us("h100-sxm", "fused", "fp32") == pytest.approx(latency_us("h100-sxm", "model", "fp32"))
