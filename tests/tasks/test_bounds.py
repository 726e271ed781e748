"""Bounds that a comparison shows: never above the latency that they bound, not by rounding either."""

from __future__ import annotations

from hypothesis import example, given, settings
from hypothesis import strategies as st

from iossim import api
from iossim.models.load import load


@settings(max_examples=15, deadline=None)
@given(
    st.sampled_from(["alexnet", "ios_sample"]),
    st.integers(1, 256),
    st.sampled_from(["h100-sxm", "a100-sxm-40gb", "l4"]),
    st.sampled_from(["paper", "graph"]),
)
@example("alexnet", 256, "h100-sxm", "graph")
def test_no_gap_is_negative(model: str, batch: int, name: str, engine: str) -> None:
    compared = api.compare(load(model, batch=batch, dtype="tf32"), name, engine=engine)
    for row in compared.rows:
        assert row.gap_percent is not None
        assert row.gap_percent >= 0.0, (row.scheduler, row.gap_percent)
