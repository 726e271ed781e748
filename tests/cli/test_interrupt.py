"""Ctrl-C during a search: the best schedule so far, said to be that; a second one ends at once."""

import json
import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from interrupts import Calls

import iossim
from iossim import api
from iossim.cli import progress, schedule_files
from iossim.cli.main import main
from iossim.cost.model import Prices
from iossim.cost.random import RandomCostModel
from iossim.report.schedule_tables import summary
from iossim.schedule.batch import StageBatch
from iossim.schedule.fit import fit
from iossim.schedule.schedule import Schedule
from iossim.search import block_parts, block_search, counting, memo
from iossim.search.options import SearchLimits, SearchOptions, StageSpace
from iossim.tasks import requests

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="signals are POSIX's")


class Interrupting(RandomCostModel):
    """Random prices; SIGINT arrives while the given batches are priced, counted from 1."""

    def __init__(self, *at: int) -> None:
        super().__init__()
        self.__dict__.update(at=at, asked=0)  # prices are frozen

    def price_stages(self, batch: StageBatch) -> Prices:
        self.__dict__["asked"] += 1
        if self.asked in self.at:
            signal.raise_signal(signal.SIGINT)
        return super().price_stages(batch)


@pytest.mark.parametrize("model", ["squeezenet", "inception_v3"])
def test_interrupted_search_gives_a_whole_schedule(model: str) -> None:
    """Wherever the interrupt falls, the schedule fits its network, is priced right, and says that it is not complete."""
    network = iossim.load(model)
    counting = Interrupting()
    optimum = iossim.optimize(network, None, cost_model=counting)
    assert optimum.complete
    # The first batch is the warm-up, and at the end every block's stages are priced once more.
    searching = counting.asked - len(network.blocks)
    for at in range(2, searching, max(1, searching // 15)):
        found = iossim.optimize(network, None, cost_model=Interrupting(at))
        assert not found.complete
        fit(found, network)
        assert found.latency_us >= optimum.latency_us * (1 - 1e-9)
        repriced = api.simulate(found, network=network, cost_model=RandomCostModel())
        assert repriced.latency_us == pytest.approx(found.latency_us, rel=1e-12)
        assert "Interrupted" in summary(found)


@pytest.mark.parametrize("scheduler", ["ios-both", "ios-merge"])
@pytest.mark.parametrize("part", ["find_endings", "relax_known", "build_lattice", "_count_some"])
def test_interrupted_inside_a_block(part: str, scheduler: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Wherever compiled code hands back, it ends the search: nothing is searched, counted or enumerated after it."""
    limits = SearchLimits(max_states=300, max_transitions=5_000)
    network = iossim.load("inception_v3")
    monkeypatch.setattr(block_parts, "FEW_STATES", 20)
    called: list[str] = []
    interrupt_at = 0

    def watch(module: ModuleType, name: str) -> None:
        inner = getattr(module, name)

        def watched(*given: Any) -> Any:
            called.append(name)
            if interrupt_at == len(called):
                raise KeyboardInterrupt
            return inner(*given)

        monkeypatch.setattr(module, name, watched)

    watch(block_search, "find_endings")
    watch(block_search, "relax_known")
    watch(counting, "_count_some")
    watch(memo, "build_lattice")

    def search() -> Schedule:
        called.clear()
        return iossim.optimize(
            network,
            None,
            scheduler=scheduler,
            cost_model=RandomCostModel(),
            options=SearchOptions(StageSpace(max_group_size=4), limits),
        )

    assert search().complete
    places = [number for number, name in enumerate(called, 1) if name == part]
    for interrupt_at in places[:: max(1, len(places) // 6)]:
        found = search()
        assert len(called) == interrupt_at
        assert not found.complete
        fit(found, network)
    assert places or scheduler == "ios-merge"


@pytest.mark.parametrize("at", [1, 100])
def test_interrupted_comparison_keeps_what_was_found(at: int) -> None:
    """At first there is nothing yet, but the first scheduler's schedule needs no search."""
    comparison = iossim.compare("inception_v3", None, cost_model=Interrupting(at))
    assert not comparison.complete
    first, *others = comparison.schedules
    assert (first.scheduler, first.complete) == ("sequential", at > 1)
    assert "ios-both" not in [found.scheduler for found in others]
    assert bool(others) == (at > 1)
    assert comparison.to_json()["complete"] is False


@pytest.mark.parametrize(
    "command",
    [
        *(f"optimize ios_sample -d t4 --scheduler {name} --no-plot" for name in ("ios-both", "ios-streams")),
        "compare ios_sample -d t4 --schedulers ios-both,ios-streams --no-plot",
        "coschedule ios_sample --copies 2 -d t4 --arrivals poisson --requests 20",
        "check ios_sample -d t4 --scheduler ios-streams --max-latency-ms 9",
        "deploy ios_sample -d t4 --runtime tensorrt",
        pytest.param("optimize ios_sample -d t4 --rewrite --no-plot", marks=pytest.mark.slow),
        "optimize ios_sample -d t4 -b 4 --micro-batch auto --no-plot",
    ],
)
@pytest.mark.parametrize("call", [1, 12])
def test_commands_end_with_what_they_promise(
    command: str, call: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Exit code 3, said to be that; files are written."""
    writes = not command.startswith(("check", "deploy"))
    with Calls(at=call, within="iossim.schedule.problem").counted() as calls:
        code = main([*command.split(), *(["--out", str(tmp_path / "out")] if writes else [])])
    output = capsys.readouterr()
    assert calls.interrupted
    assert output.err.startswith("interrupted: ending with the best schedule so far; once more to stop at once\n")
    assert (code, "Interrupted" in output.out) == ((3, True) if "tensorrt" not in command else (3, False))
    assert (tmp_path / "out").exists() == writes
    for path in (tmp_path / "out").glob("*schedule.json"):
        assert '"complete": false' in path.read_text()


def test_an_interrupt_of_drawing_keeps_the_schedule(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(schedule_files, "schedule_files", lambda *given, **named: signal.raise_signal(signal.SIGINT))
    assert main(["optimize", "ios_sample", "-d", "t4", "--out", str(tmp_path)]) == 3
    assert json.loads((tmp_path / "schedule.json").read_text())["complete"] is True
    assert capsys.readouterr().err.endswith(f"wrote {tmp_path / 'schedule.json'}\n")


@pytest.fixture
def interrupting(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Makes the command line price with a model that is interrupted at the given batches."""

    def install(*at: int) -> None:
        monkeypatch.setattr(requests, "create_cost_model", lambda *_: Interrupting(*at))

    return install


def test_compare_of_devices(interrupting: Any, capsys: pytest.CaptureFixture[str]) -> None:
    """What is there of the first device stays; the second one was not begun."""
    interrupting(100)
    assert main(["compare", "inception_v3", "-d", "t4,a10", "--json"]) == 3
    document = json.loads(capsys.readouterr().out)
    assert document["complete"] is False
    assert len(document["devices"]) == 1


@pytest.mark.parametrize("second", [61, 63, 70])
@pytest.mark.parametrize("command", ["optimize", "compare"])
def test_second_interrupt_ends_at_once(
    second: int, command: str, interrupting: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    interrupting(*(range(70, 110) if command == "compare" else (60, second)))
    assert main([command, "inception_v3", "--out", str(tmp_path / "out")]) == 130
    output = capsys.readouterr()
    assert output.out == ""
    assert output.err.endswith("\ninterrupted\n")
    assert not (tmp_path / "out").exists()


def test_handler_is_put_back(interrupting: Any) -> None:
    before = signal.getsignal(signal.SIGINT)
    interrupting(60)
    main(["optimize", "inception_v3"])
    assert signal.getsignal(signal.SIGINT) is before


@pytest.mark.parametrize("interrupts", [1, 2])
def test_process(interrupts: int, tmp_path: Path) -> None:
    """A real process and real signals, during a search whose prices come slowly."""
    program = """
import sys, time
from iossim.tasks import requests
from iossim.cli.main import main
from iossim.cost.random import RandomCostModel

class Slow(RandomCostModel):
    def price_stages(self, batch):
        print("pricing", file=sys.stderr, flush=True)
        time.sleep(0.02)
        return super().price_stages(batch)

requests.create_cost_model = lambda *_: Slow()
sys.exit(main(["optimize", "randwire", "--json"]))
"""
    with subprocess.Popen(
        [sys.executable, "-c", program],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as process:
        assert process.stderr is not None
        assert process.stdout is not None
        for _ in range(5):
            assert process.stderr.readline() == "pricing\n"
        said = []
        for _ in range(interrupts):
            os.kill(process.pid, signal.SIGINT)
            while (line := process.stderr.readline()) and line == "pricing\n":
                pass
            said.append(line)
            time.sleep(0.1)
        output = process.stdout.read()
        said += process.stderr.read().splitlines(keepends=True)
    assert said[0].startswith("interrupted: ending with the best schedule so far")
    assert "Traceback" not in "".join(said)
    if interrupts == 1:
        assert process.returncode == 3
        assert json.loads(output)["complete"] is False
    else:
        assert process.returncode == 130
        assert said[1] == "interrupted\n"
        assert output == ""


@pytest.mark.parametrize("handling", [progress.hears_interrupts, progress.interruptible])
def test_an_interrupt_inside_numba_comes_when_it_is_done(handling: Any) -> None:
    """There an exception is lost, or ends the process: the interrupt is heard as soon as Python's own code runs again."""
    inside: dict[str, Any] = {"__name__": "numba.core.serialize", "signal": signal, "reached": []}
    exec("def unpickle():\n    signal.raise_signal(signal.SIGINT)\n    reached.append(1)", inside)

    def work() -> None:
        with handling():
            inside["unpickle"]()
            time.sleep(30)

    with pytest.raises(KeyboardInterrupt):
        work()
    assert inside["reached"] == [1]


@pytest.mark.parametrize("swallowed", [(), BaseException])
def test_an_early_interrupt_says_so(
    swallowed: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Typer makes an exit code of KeyboardInterrupt, without a word; an import may swallow it."""

    def interrupted(*_: object) -> RandomCostModel:
        with suppress(swallowed):
            signal.raise_signal(signal.SIGINT)
        return RandomCostModel()

    monkeypatch.setattr(requests, "create_cost_model", interrupted)
    assert main(["optimize", "squeezenet", "-d", "t4"]) == 130
    assert capsys.readouterr().err == "interrupted\n"


def test_an_interrupt_while_the_command_line_is_imported() -> None:
    program = """
import sys
class Importer:
    def find_spec(self, name, path, target=None):
        if name == "iossim.cli.main":
            raise KeyboardInterrupt
sys.meta_path.insert(0, Importer())
from iossim.__main__ import main
sys.exit(main())
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "interrupted\n")
