"""Joins fused or apart by price: the better way is taken, said, saved and found again, and loses to nothing."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from command_line import printed, printed_json, refused

from iossim import api
from iossim.api import cost_model
from iossim.base.errors import ScheduleError
from iossim.ir.network import Network
from iossim.models.load import load
from iossim.models.onnx.export import write_onnx
from iossim.models.passes.joins import joins_of, with_joins
from iossim.schedule.schedule import Schedule
from iossim.search.options import SearchOptions
from iossim.search.scheduler import schedule
from iossim.transforms.fused_joins import ChooseJoins, joined_again
from iossim.transforms.replay import network_of
from iossim.transforms.transform import Setting


def written(network: Network, folder: Path) -> Path:
    """The network in a file that does not say its units, as other exporters write them."""
    path, *_ = write_onnx(network.graph, folder / f"{network.name}.onnx")
    return path


def best_us(model: str | Path, device: str = "t4", **options: str) -> float:
    return api.compare(str(model), device, schedulers=["sequential", "ios-both"], **options).best.latency_us  # type: ignore[arg-type]


@pytest.mark.parametrize(("name", "device"), [("squeezenet", "t4"), ("resnet18", "t4"), ("resnet18", "h100-sxm")])
def test_a_network_and_a_file_of_it_without_units_take_the_same(name: str, device: str, tmp_path: Path) -> None:
    assert best_us(written(load(name), tmp_path), device) == pytest.approx(best_us(name, device), rel=2e-3)


def test_what_is_better_apart_is_apart(tmp_path: Path) -> None:
    """An MLP's gate may run beside what it is multiplied with: 3% of a decoder, which fusing loses."""
    path = written(load("moe_shared"), tmp_path)
    found = api.compare(str(path), "t4", schedulers=["ios-both"])
    assert found["ios-both"].latency_us > 1.01 * found.best.latency_us
    assert "joins of branches are apart from products: faster here" in found.outcomes[0].sentence()


def test_no_way_of_all_blocks_is_better_than_the_best_of_each() -> None:
    network, prices = load("squeezenet"), cost_model("simulator", "t4")
    chosen = ChooseJoins().apply(network, Setting(prices, "ios-both", SearchOptions()))
    names, found = sorted(joins_of(network).apart), {}
    for count in range(2 ** len(names)):
        fused = tuple(name for place, name in enumerate(names) if count >> place & 1)
        found[fused] = schedule(with_joins(network, fused), prices, "ios-both").latency_us
    assert chosen.latency_us["chosen"] == min(found.values())
    assert chosen.fused == min(found, key=lambda way: found[way])
    assert (chosen.fused_count, chosen.latency_us["given"]) == (3, found[()])


def test_a_saved_schedule_brings_its_units_along(tmp_path: Path) -> None:
    path = written(load("squeezenet"), tmp_path)
    for model in (str(path), "squeezenet"):
        said = printed(f"optimize {model} -d t4 --out {tmp_path}/out --no-plot --no-trace")
        assert "3 of 4 adds are fused into convolutions: faster here" in " ".join(said.split())
        saved = Schedule.read(tmp_path / "out" / "schedule.json")
        assert len(network_of(saved).units) == 47
        assert "joins" in saved.source.options
        printed(f"explain {tmp_path}/out/schedule.json")
        assert printed_json(f"simulate {tmp_path}/out/schedule.json --json")["latency_us"] == saved.latency_us
        # Written as a model, it is the network that was scheduled: nothing is left to choose.
        printed(f"optimize {model} -d t4 --onnx {tmp_path}/chosen.onnx")
        again = printed_json(f"compare {tmp_path}/chosen.onnx -d t4 --json")
        assert min(found["latency_us"] for found in again["schedules"]) == saved.latency_us
        assert again["joins"]["schedules"] == []


def test_units_that_are_asked_for_are_kept(tmp_path: Path) -> None:
    path = written(load("squeezenet"), tmp_path)
    units = {}
    for model in ("squeezenet", path):
        for policy in ("model", "fused", "apart"):
            compared = printed_json(f"compare {model} -d t4 --units {policy} --schedulers sequential --json")
            assert compared["joins"] is None
            units[str(model), policy] = compared["schedules"][0]["stages"]
    assert list(units.values()) == [50, 46, 50, 46, 46, 50]
    compared = printed_json(f"compare {path} -d t4 --json")
    assert compared["joins"]["latency_us"].keys() == {"given", "fused", "apart", "chosen"}
    assert [row["way"] for row in compared["joins"]["schedules"]] == ["partly fused"] * 2
    # What measures, and what ends in time, takes the units as they are.
    for options in ("--cost-model random:1", "--seconds 5"):
        assert printed_json(f"compare {path} -d t4 {options} --json")["joins"] is None


def test_a_network_that_is_given_is_scheduled_as_it_is() -> None:
    network = load("squeezenet")
    assert api.compare(network, "t4").outcomes == ()
    assert network_units(api.optimize(network, "t4")) == {unit.name for unit in network.units}
    assert network_units(api.optimize(network, "t4", choose_joins=True)) != {unit.name for unit in network.units}


def network_units(found: Schedule) -> set[str]:
    return {unit for stage in found.stages for unit in stage.units}


def test_an_interrupt_keeps_the_network(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*given: object, **named: object) -> Schedule:
        raise KeyboardInterrupt

    monkeypatch.setattr("iossim.transforms.choices.schedule", interrupted)
    network = load("squeezenet")
    found = ChooseJoins().apply(network, Setting(cost_model("simulator", "t4"), "ios-both", SearchOptions()))
    assert (found.network, found.interrupted, found.sentence()) == (network, True, "")


@pytest.mark.parametrize("text", ["", "[]", '{"fused": 1}', '{"fused": []}'])
def test_a_source_that_names_no_joins(text: str, tmp_path: Path) -> None:
    with pytest.raises(ScheduleError, match="names no joins"):
        joined_again(load("squeezenet"), text)
    found = api.optimize("squeezenet", "t4")
    broken = replace(found.source.to_source(), options=(("joins", text),))
    saved = json.loads(found.model_dump_json()) | {"source": {"model": broken.model, "options": dict(broken.options)}}
    (tmp_path / "schedule.json").write_text(json.dumps(saved))
    refused(f"simulate {tmp_path}/schedule.json")
