"""An op kind, a device kind and a cost model of another package, a file each (``one_file_each``), in the same commands."""

import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from command_line import printed, printed_json, refused
from onnx_models import write_onnx

from iossim.cost.capabilities import DeviceCostModel
from iossim.hardware.kind import DEVICE_KINDS, device_kind
from iossim.ir.op import Op
from iossim.report.notebook import picture
from iossim.schedule.schedule import Schedule
from iossim.tasks.own_prices import own_prices

FILES = Path(__file__).parent / "one_file_each"
ENTRY_POINTS = """
[iossim.ops]
determinant = determinant:Determinant
[iossim.device_kinds]
systolic = systolic
broken = determinant
[iossim.devices]
array-8 = systolic:profile
[iossim.cost_models]
roofline = roofline:create
"""


@pytest.fixture(autouse=True)
def _installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    site = tmp_path / "site"
    (site / "guests-1.0.dist-info").mkdir(parents=True)
    (site / "guests-1.0.dist-info" / "METADATA").write_text("Metadata-Version: 2.1\nName: guests\nVersion: 1.0\n")
    (site / "guests-1.0.dist-info" / "entry_points.txt").write_text(ENTRY_POINTS)
    for path in FILES.glob("*.py"):
        (site / path.name).symlink_to(path)
    monkeypatch.syspath_prepend(str(site))
    monkeypatch.chdir(tmp_path)
    yield
    for path in FILES.glob("*.py"):
        sys.modules.pop(path.stem, None)
    Op.registry.pop("determinant", None)
    Op.onnx_registry.pop("Det", None)


@pytest.fixture
def model(tmp_path: Path) -> str:
    """Determinants of three products of one input, and their sum."""
    nodes = "; ".join(f"p{n} = MatMul (x, w{n}); d{n} = Det (p{n})" for n in range(3))
    weights = {f"w{n}": np.full((64, 64), 0.01 * n, np.float32) for n in range(3)}
    write_onnx(tmp_path / "dets.onnx", f"{nodes}; y = Sum (d0, d1, d2)", {"x": [8, 64, 64]}, weights, output={"y": [8]})
    return "dets.onnx"


@pytest.mark.parametrize(
    ("device", "cost_model"),
    [
        pytest.param("t4", "simulator", marks=pytest.mark.slow),
        pytest.param("t4", "roofline", marks=pytest.mark.slow),
        pytest.param("array-8", "simulator", marks=pytest.mark.slow),
        ("array-8", "roofline"),
    ],
)
def test_commands_take_them_all(model: str, device: str, cost_model: str) -> None:
    priced = f"{model} -d {device} --cost-model {cost_model} --strict"
    compared = printed_json(f"compare {priced} --json")
    latencies = {row["scheduler"]: row["latency_us"] for row in compared["schedules"]}
    assert latencies["ios-both"] < latencies["sequential"]
    for name in ("sequential", "ios-both"):
        printed(f"optimize {priced} --scheduler {name} --out {name} --plot")
    best = Path("ios-both")
    assert {"schedule.json", "graph.svg", "trace.json", "index.html"} <= {path.name for path in best.iterdir()}
    explained = printed_json(f"explain {best}/schedule.json --json")
    assert explained["latency_us"] == latencies["ios-both"] == pytest.approx(sum(explained["limits_us"].values()))
    assert explained["could_save_us"] == 0
    assert explained["unknown"] == []
    assert explained == printed_json(f"explain {best}/schedule.json --cost-model {cost_model} --json")
    found = printed_json(f"diff sequential/schedule.json {best}/schedule.json --json")
    assert (found["same_prices"], found["unknown"]) == (True, [])
    simulated = printed_json(f"simulate {best}/schedule.json --json")
    assert simulated["device"] == device
    saved = Schedule.read(best / "schedule.json")
    prices = own_prices(saved)
    assert isinstance(prices, DeviceCostModel)
    assert prices.identity.to_json() == saved.cost_model
    assert picture(saved).svg.count("matmul") > 0


def test_a_schedule_is_priced_with_the_argument_that_it_was_found_with(model: str) -> None:
    for argument in ("0.5", "1"):
        printed(f"optimize {model} -d array-8 --cost-model roofline:{argument} --out at{argument} --no-plot")
    slow, fast = (Schedule.read(Path(f"at{argument}/schedule.json")) for argument in ("0.5", "1"))
    assert slow.cost_model["version"].endswith("+0.5")
    assert slow.latency_us > fast.latency_us
    explained = printed_json("explain at0.5/schedule.json --json")
    assert explained["latency_us"] == slow.latency_us
    crossed = printed_json("diff at0.5/schedule.json at1/schedule.json --json")["cross"]
    assert crossed["first_at_second_us"] == fast.latency_us
    elsewhere = printed_json("explain at0.5/schedule.json -d t4 --json")
    assert (elsewhere["cost_model"]["name"], elsewhere["cost_model"]["device"]) == ("roofline", "t4")


def test_a_device_kind_that_does_not_work_is_one_line() -> None:
    assert set(DEVICE_KINDS.names()) == {"cpu", "gpu", "broken", "systolic"}
    assert device_kind("systolic").noun == "systolic array"
    Path("other.yaml").write_text(
        (FILES / "systolic.py").read_text().split('"""')[-2].replace("systolic\n", "broken\n")
    )
    assert "determinant is module, not a module with KIND and TARGET" in refused("optimize ios_sample -d other.yaml")
