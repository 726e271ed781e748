"""Commands on networks that are small to the point of oddness: nothing that takes time, or one op that rules remove."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from command_line import printed
from onnx_models import write_onnx


@pytest.fixture
def views(tmp_path: Path) -> Path:
    """A model of two views, which launch nothing on a GPU."""
    nodes, sizes = "[r] y = Reshape (x, sizes); [f] z = Flatten (x)", {"sizes": np.array([2, 2])}
    return write_onnx(tmp_path / "views.onnx", nodes, {"x": [1, 4]}, sizes, output="y z")


def test_a_schedule_may_take_no_time(views: Path) -> None:
    saved = views.with_name("schedule.json")
    printed(f"optimize {views} -d t4 --no-plot --out {views.parent}")
    assert "Fastest: t4, 0.000 ms by ios-both, 1.00x as fast as v100-sxm2" in printed(
        f"compare {views} -d t4,v100-sxm2"
    )
    assert "Mean active warps: 0." in printed(f"simulate {saved} --event-driven")
    assert "no kernels: views only" in printed(f"explain {saved} --stage 0")


@pytest.mark.parametrize("search", ["joint", "saturation"])
def test_rules_may_remove_the_only_op(search: str, tmp_path: Path) -> None:
    path = write_onnx(tmp_path / "same.onnx", "[same] y = Identity (x)", {"x": [1, 4]})
    assert "1 stages" in printed(f"optimize {path} -d t4 --rewrite --rewrite-search {search}")
