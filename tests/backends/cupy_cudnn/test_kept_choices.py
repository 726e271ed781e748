"""Choices of algorithms in a file: what is kept is not timed again, and nothing else is taken for it."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
from host_backend import HostBackend
from small_networks import UNITS

from iossim.backends.cupy_cudnn.algorithms import FORMAT, KeptChoices
from iossim.backends.cupy_cudnn.cudnn_graphs import EnginePlan
from iossim.backends.cupy_cudnn.options import CudnnOptions, parsed_options, usual_choices
from iossim.base.errors import OptionError
from iossim.execution.engine import Engine
from iossim.ir.builder import GraphBuilder
from iossim.ir.network import Network
from iossim.ir.types import Precision
from iossim.schedule.batch import Strategy, UnitVariant

VERSIONS = {"cudnn": "9.19.1", "cudnn-frontend": "1.28.0"}
PLANS = {EnginePlan("eng0", 0): 9.0, EnginePlan("eng1", 256): 5.0}


def backend(
    path: Path | None,
    engine: Engine = Engine.GRAPH,
    plans: dict[EnginePlan, float] | None = None,
    options: CudnnOptions | None = None,
    **versions: str,
) -> HostBackend:
    given = {**VERSIONS, **{name.replace("_", "-"): version for name, version in versions.items()}}
    settings = asdict(options or CudnnOptions(choices=path))
    return HostBackend(engine=engine, plans_of=lambda _: plans or PLANS, versions=tuple(given.items()), **settings)


def chosen(made: HostBackend) -> list[str]:
    networks = [UNITS[name]() for name in ("conv and relu without bias", "separable conv of a sum")]
    return [made.algorithm(network, unit.name) for network in networks for unit in network.units]


def test_a_second_backend_times_nothing(tmp_path: Path) -> None:
    path = tmp_path / "made" / "choices.json"
    first = backend(path)
    names = chosen(first)
    assert (first.planning.convolutions, first.planning.recalled) == (3, 0)
    second = backend(path, Engine.PAPER)  # a choice does not depend on the engine
    assert chosen(second) == names
    planning = second.planning
    assert (planning.convolutions, planning.recalled, planning.candidates_timed) == (3, 3, 0)
    assert planning.plans_built == 2  # those that run, and no other: the depthwise one runs by a kernel of ours
    assert planning.warm_up_us == 0
    assert list(path.parent.iterdir()) == [path]


def test_two_that_write_in_turn_lose_nothing(tmp_path: Path) -> None:
    path = tmp_path / "choices.json"
    first, second = KeptChoices(path, {"device": "a"}), KeptChoices(path, {"device": "b"})
    first.keep("x", "about x", UnitVariant("fused:eng1", 1.0, 0))
    second.keep("y", "about y", UnitVariant("fused:eng2", 2.0, 0))
    first.keep("z", "about z", UnitVariant("fused:eng3", 3.0, 0))
    again = KeptChoices(path, {"device": "a"})
    assert [again.find(key) and again.find(key).name for key in "xyz"] == ["fused:eng1", None, "fused:eng3"]  # type: ignore[union-attr]
    assert KeptChoices(path, {"device": "b"}).find("y") is not None


@pytest.mark.parametrize(
    ("change", "is_other", "recalled", "plan"),
    [
        ({"cudnn": "9.20.0"}, True, 0, "fused:eng1"),
        ({"cudnn_frontend": "1.27.0"}, True, 0, "fused:eng1"),
        ({"options": CudnnOptions(workspace_limit_bytes=100)}, True, 0, "fused:eng0"),
        ({"plans": {EnginePlan("eng5", 0): 1.0}}, False, 1, "fused:eng5"),  # what no plan of cuDNN computes
        ({}, False, 3, "fused:eng1"),
    ],
)
def test_choices_of_other_versions_and_options_are_none(
    change: dict[str, Any], is_other: bool, recalled: int, plan: str, tmp_path: Path
) -> None:
    """Nor is a plan that is no longer offered; what another backend has kept since this one began is."""
    path = tmp_path / "choices.json"
    given = {name: replace(each, choices=path) if name == "options" else each for name, each in change.items()}
    other = backend(path, **given)
    chosen(backend(path))
    assert set(" ".join(chosen(other)).split()) == {plan, "own1x1"}
    assert other.planning.recalled == recalled
    kept = json.loads(path.read_text(encoding="utf-8"))
    assert [len(place["choices"]) for place in kept["places"]] == [3] * (1 + is_other)


@pytest.mark.parametrize(
    "text",
    ["", "{", "[]", "{}", '{"format": "mine"}', json.dumps({"format": FORMAT}), "\x00\xff"]
    + [json.dumps({"format": FORMAT, "places": places}) for places in (1, [1], [{"where": {}, "choices": {"a": {}}}])],
)
def test_a_file_of_something_else_is_refused_and_left_as_it_is(tmp_path: Path, text: str) -> None:
    path = tmp_path / "choices.json"
    path.write_bytes(text.encode("latin-1"))
    with pytest.raises(OptionError, match="choices") as error:
        backend(path)
    assert "name another file, or remove this one" in str(error.value)
    assert path.read_bytes() == text.encode("latin-1")


def separable(channels: int) -> Network:
    b = GraphBuilder(f"separable {channels}")
    x = b.input("x", (1, 4, 6, 5))
    return b.network([b.conv(b.conv(x, 4, 3, padding=1, name="same"), channels, name="own")])


def test_by_default_another_network_recalls_what_it_shares_with_the_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("IOSSIM_DATA_DIR", str(tmp_path / "made"))
    counts = []
    for channels in (6, 7, 7):
        made = backend(None, options=parsed_options(Precision.FP32, {}))
        choices = made.choices(network := separable(channels))
        for unit in network.units:
            choices((unit.name,), Strategy.CONCURRENT)
        counts.append((made.planning.recalled, made.planning.convolutions))
    assert counts == [(0, 2), (1, 2), (2, 2)]
    assert usual_choices() == tmp_path / "made" / "cudnn_choices.json"
    assert usual_choices().is_file()
    (place,) = json.loads(usual_choices().read_text())["places"]
    assert place["where"].items() >= {"driver": "580.1", "device": "NVIDIA H100 80GB HBM3", "cudnn": "9.19.1"}.items()
    assert parsed_options(Precision.FP32, {"choices": "off"}).choices is None


def test_a_file_that_cannot_be_written_is_a_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "file").write_text("")
    made = backend(tmp_path / "file" / "folder" / "choices.json")
    assert chosen(made)
    assert "choices of algorithms cannot be kept in" in caplog.text
    assert "Not a directory; give option choices off, or name another file" in caplog.text


def test_the_option_names_the_file_and_is_no_part_of_the_context(tmp_path: Path) -> None:
    given = parsed_options(Precision.FP32, {"choices": "a/b.json"})
    assert given.choices == Path("a/b.json")
    assert "choices" not in dict(given.pairs)
    assert backend(tmp_path / "c.json").context == backend(None).context
