"""``iossim optimize``, ``compare`` and ``simulate``: a schedule, its evidence, and its price elsewhere; tables and files."""

import json
import re
import xml.etree.ElementTree
from html import unescape
from pathlib import Path
from typing import Any

import pytest
from command_line import printed, printed_json, refused
from small_networks import OPS
from trace_format import check_trace, counters

import iossim
from iossim.models.onnx.export import write_onnx
from iossim.schedule.schedule import Schedule
from iossim.transforms.replay import network_of

PNG = b"\x89PNG\r\n\x1a\n"
FILES = {"schedule.json", "index.html", "graph.svg", "trace.json", "timeline.svg", "timeline.png"}


def read_and_fit(path: Path) -> Schedule:
    """A saved schedule, checked against the network that it says it is for."""
    saved = Schedule.read(path)
    network_of(saved)
    return saved


@pytest.mark.parametrize(
    "options",
    [
        "squeezenet -d v100-sxm2",
        "squeezenet -d t4 --engine graph --batch 4 --dtype fp16",
        "squeezenet -d a100-sxm-40gb --dtype int8 --units none",
        "resnet18 -d k80 --max-block 4",
        "ios_sample -d h100-sxm --dtype tf32 --scheduler greedy",
        "inception_v3 -d rtx-2080-ti --scheduler ios-parallel --stages paper -r 3 -s 8",
        "randwire -d p100-pcie-16gb --scheduler ios-merge",
    ],
)
def test_files_of_a_schedule(options: str, tmp_path: Path) -> None:
    out = tmp_path / "made" / "by optimize"
    text = printed([*f"optimize {options}".split(), "--out", str(out)])
    assert {path.name for path in out.iterdir()} == FILES
    saved = read_and_fit(out / "schedule.json")
    assert f"{saved.latency_us / 1e3:.3f} ms in {len(saved.stages)} stages" in text
    assert saved.latency_us == pytest.approx(sum(stage.latency_us + stage.boundary_us for stage in saved.stages))
    tracks = check_trace((out / "trace.json").read_text())
    stage_track = next(events for name, events in tracks.items() if "stage" in name.lower())
    assert len(stage_track) == sum(stage.latency_us > 0.0 for stage in saved.stages)
    assert 2 <= len(tracks) <= 1 + saved.streams  # a group of concats in place alone launches nothing
    end_us = max(event["ts"] + event["dur"] for events in tracks.values() for event in events)
    assert end_us == pytest.approx(saved.latency_us, abs=0.01)
    page = (out / "index.html").read_text()
    assert len(page) < 3_000_000
    stages = json.loads(page.partition('id="data">')[2].partition("</script>")[0])["stages"]
    assert [bool(stage["why"]) for stage in stages] == [True] * len(saved.stages)
    assert (out / "graph.svg").read_text().count("class='band'") == len(saved.stages)
    assert (out / "timeline.png").read_bytes().startswith(PNG)
    assert xml.etree.ElementTree.parse(out / "timeline.svg").getroot().tag.endswith("svg")


def test_files_replace_those_of_the_run_before(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    for device in ("t4", "k80"):
        printed(f"optimize ios_sample -d {device} --no-trace --no-plot --out {tmp_path}")
        assert Schedule.read(tmp_path / "schedule.json").device == device
    assert {path.name for path in tmp_path.iterdir()} == {"schedule.json", "notes.txt"}
    assert (tmp_path / "notes.txt").read_text() == "mine"


def test_without_a_timeline(tmp_path: Path) -> None:
    """A cost model that knows prices alone gives a schedule and its graph."""
    printed(f"optimize squeezenet --cost-model random:7 --out {tmp_path}")
    assert {path.name for path in tmp_path.iterdir()} == {"schedule.json", "graph.svg"}
    assert read_and_fit(tmp_path / "schedule.json").device == "random"


def test_table_names_every_unit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    text = printed("optimize inception_v3 -d v100-sxm2")
    assert all(len(line) <= 80 for line in text.splitlines())
    joined = "".join(text.split())
    for unit in iossim.load("inception_v3").units:
        assert "".join(unit.name.split()) in joined
    assert "Provably optimal" in text


@pytest.mark.parametrize("scheduler", ["sequential", "greedy"])
def test_schedulers_that_do_not_search_prove_nothing(scheduler: str) -> None:
    assert "proven" not in printed(f"optimize ios_sample -d t4 --scheduler {scheduler}")


@pytest.mark.parametrize(
    "options",
    [
        "", "--engine graph", "--engine onnxruntime", "-d h200-sxm --engine partition", "--dtype fp16 --batch 3",
        "--units none --max-block 4", "--batch 8 --workspace-limit 64KiB", "--company", "--training",
        "--batch 4 --micro-batch 2", "--rewrite --rewrite-budget 5", "--scheduler ios-streams",
        "-d a100-sxm-40gb --dtype tf32 --cost-model simulator:backend", "--cost-model simulator:in-place",
        "--engine graph --cost-model simulator:copies", "--scheduler ios-streams --cost-model simulator:in-place",
        "--cost-model simulator:structured-error=3",
    ],
)  # fmt: skip
def test_simulated_and_explained_as_it_was_priced(options: str, tmp_path: Path) -> None:
    device = "" if "-d " in options else "-d v100-sxm2"
    saved = printed_json(f"optimize squeezenet {device} {options} --no-plot --no-trace --out {tmp_path} --json")
    assert saved == json.loads((tmp_path / "schedule.json").read_text())
    again = printed_json(f"simulate {tmp_path / 'schedule.json'} --event-driven --json")
    assert again["latency_us"] == pytest.approx(saved["latency_us"], rel=1e-9)
    assert again["cost_model"] == saved["cost_model"]
    kind = "streams" if "streams" in saved else "blocks"
    assert again[kind] == saved[kind]
    explained = printed_json(f"explain {tmp_path / 'schedule.json'} --json")
    assert explained["latency_us"] == pytest.approx(saved["latency_us"], rel=1e-9)
    if "simulator:" in options and "structured" not in options:
        # Event by event, concats and splits are where the prices have them.
        assert again["event_driven"]["latency_us"] == pytest.approx(saved["latency_us"], rel=0.03)


def test_simulated_elsewhere(tmp_path: Path) -> None:
    """The price of what is best on one device is no less than that of what is best on the other."""
    printed(f"optimize squeezenet -d v100-sxm2 --no-plot --out {tmp_path}")
    path = tmp_path / "schedule.json"
    there = printed_json(f"simulate {path} --device k80 --json")
    best_there = printed_json("optimize squeezenet -d k80 --json")
    assert there["device"] == "k80"
    assert there["latency_us"] >= best_there["latency_us"] * (1 - 1e-9)
    saved = Schedule.read(path)
    text = printed(f"simulate {path} --device k80")
    assert f"{there['latency_us'] / 1e3:.3f} ms on k80; {saved.latency_us / 1e3:.3f} ms on v100-sxm2" in text
    graph = printed_json(f"simulate {path} --engine graph --json")
    assert graph["engine"] == "graph"
    assert graph["latency_us"] < saved.latency_us


def test_model_that_has_moved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A path with a space and letters beyond ASCII; then the file goes elsewhere, and --model says where."""
    folder = tmp_path / "modèles à moi"
    folder.mkdir()
    monkeypatch.chdir(tmp_path)
    path = folder / "réseau 网络.onnx"
    write_onnx(OPS["conv"]().graph, path)
    printed(["optimize", str(path), "-d", "t4", "--out", "sortie préférée"])
    saved = Schedule.read(Path("sortie préférée/schedule.json"))
    assert saved.network == "réseau 网络"
    assert printed_json(["simulate", "sortie préférée/schedule.json", "--json"])["latency_us"] > 0
    path.rename("moved.onnx")
    moved = printed_json(["simulate", "sortie préférée/schedule.json", "--model", "moved.onnx", "--json"])
    assert moved["latency_us"] == saved.latency_us


@pytest.mark.parametrize(
    "place", ["out/net.onnx", "out/models/net.onnx", "models/net.onnx", "elsewhere/models/net.onnx"]
)
@pytest.mark.parametrize(
    "command", ["simulate {}", "explain {}", "diff {} {}", "schedules export {} --out {}.ios --format ios",
                "deploy {} --runtime tensorrt", "run {} --backend numpy_reference --rounds 1"],
)  # fmt: skip
def test_a_model_is_found_from_its_schedule(
    command: str, place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Beside the schedule, from the working directory, or where the command ran that wrote it, above the schedule."""
    model, saved = Path("models/net.onnx"), tmp_path / "out" / "schedule.json"
    monkeypatch.chdir(tmp_path)
    model.parent.mkdir()
    write_onnx(OPS["conv, grouped"]().graph, model, name="net")
    printed(f"optimize {model} -d t4 --scheduler sequential --no-plot --out out")
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    kept = (tmp_path / place).resolve()
    kept.parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / model).rename(kept)
    printed(command.replace("{}", str(saved)))
    kept.unlink()
    missing = "'models/net.onnx' does not exist; say where it is now with --model"
    refused(command.replace("{}", str(saved)), missing)


@pytest.mark.parametrize("options", ["", "--engine graph"])
def test_simulated_block_by_block(options: str, tmp_path: Path) -> None:
    printed(f"optimize squeezenet -d v100-sxm2 {options} --no-plot --out {tmp_path}")
    command = f"simulate {tmp_path / 'schedule.json'} --event-driven"
    document = printed_json(f"{command} --json --out {tmp_path / 'run'}")
    found = document["event_driven"]
    assert found["latency_us"] == pytest.approx(document["latency_us"], rel=0.15)
    assert 0 < found["mean_active_warps"] < 80 * 64
    assert all(0 < found[name] < 1 for name in ("mean_issue", "mean_l2", "mean_dram"))
    assert {path.name for path in (tmp_path / "run").iterdir()} == FILES | {"active_warps.svg", "active_warps.png"}
    trace = (tmp_path / "run" / "trace.json").read_text()
    tracks = check_trace(trace)
    end_us = max(event["ts"] + event["dur"] for events in tracks.values() for event in events)
    assert end_us == pytest.approx(found["latency_us"], abs=0.01)
    assert counters(trace)["active warps"][-1] == (pytest.approx(end_us, abs=0.01), 0)
    text = printed(command)
    assert f"Event-driven simulator: {found['latency_us'] / 1e3:.3f} ms" in " ".join(text.split())
    elsewhere = printed_json(f"{command} --device k80 --engine paper --json")
    assert elsewhere["event_driven"]["latency_us"] > found["latency_us"]


def test_simulated_files_without_running_it(tmp_path: Path) -> None:
    printed(f"optimize squeezenet -d v100-sxm2 --no-plot --out {tmp_path}")
    printed(f"simulate {tmp_path / 'schedule.json'} -d t4 --no-plot --out {tmp_path / 'there'}")
    assert {path.name for path in (tmp_path / "there").iterdir()} == {"schedule.json", "trace.json"}
    assert Schedule.read(tmp_path / "there" / "schedule.json").device == "t4"
    assert counters((tmp_path / "there" / "trace.json").read_text()) == {}


SCHEDULERS = ["sequential", "greedy", "ios-merge", "ios-parallel", "ios-both"]
FIELDS = {"model": str, "device": str, "batch": int, "dtype": str, "engine": str, "schedules": list}
SCHEDULE_FIELDS = {"scheduler": str, "stages": int} | dict.fromkeys(
    ("latency_us", "speedup", "search_s", "lower_bound_us"), float
)


def check_comparison(comparison: dict[str, Any]) -> None:
    """The documented fields with their types, and what must hold between the figures of any comparison."""
    for field, kind in FIELDS.items():
        assert type(comparison[field]) is kind, field
    assert [found["scheduler"] for found in comparison["schedules"]] == SCHEDULERS
    by_name = {found["scheduler"]: found for found in comparison["schedules"]}
    for found in comparison["schedules"]:
        for field, kind in SCHEDULE_FIELDS.items():
            assert type(found[field]) is kind, field
        assert found["speedup"] == pytest.approx(by_name["sequential"]["latency_us"] / found["latency_us"])
        assert found["lower_bound_us"] <= found["latency_us"] * (1 + 1e-9)
        assert found["stages"] >= 1
        if found["interval_us"] is None:
            assert comparison["cost_model"]["name"] != "simulator"
        else:
            low_us, high_us = found["interval_us"]
            assert 0 < low_us < found["latency_us"] < high_us
        # Who ties with whom does not depend on who is asked.
        assert all(found["scheduler"] in by_name[other]["ties"] for other in found["ties"])
        assert found["scheduler"] not in found["ties"]
    best = by_name["ios-both"]["latency_us"]
    assert all(best <= found["latency_us"] * (1 + 1e-9) for found in comparison["schedules"])
    assert by_name["ios-parallel"]["latency_us"] <= by_name["greedy"]["latency_us"] * (1 + 1e-9)
    for name in ("ios-merge", "ios-parallel"):
        assert by_name[name]["latency_us"] <= by_name["sequential"]["latency_us"] * (1 + 1e-9)


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (
            "-d v100-sxm2",
            {"model": "squeezenet", "device": "v100-sxm2", "batch": 1, "dtype": "fp32", "engine": "paper"},
        ),
        *((f"-d a100-sxm-40gb --dtype {dtype}", {"dtype": dtype}) for dtype in ("tf32", "fp16", "bf16", "int8")),
        ("-d t4 --engine graph", {"engine": "graph"}),
        ("-d t4 --shape image=2x3x128x128", {"batch": 2}),
    ],
)
def test_json(options: str, expected: dict[str, Any]) -> None:
    comparison = printed_json(f"compare squeezenet {options} --json")
    check_comparison(comparison)
    assert {key: comparison[key] for key in expected} == expected
    assert comparison["complete"] is True
    assert comparison["peak_memory_bytes"] > 2**24  # of the whole process, which other tests may have grown


def test_table(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    text = printed("compare squeezenet --device v100-sxm2")
    lines = text.splitlines()
    assert all(len(line) <= 80 for line in lines)
    assert lines[0] == "squeezenet on v100-sxm2, batch 1, fp32, paper engine, priced by simulator"
    # A sign behind a scheduler marks a tie with the best.
    words = [line.replace("≈", " ").split() for line in lines]
    rows = [row for row in words if row[:1] and row[0] in SCHEDULERS]
    assert [row[0] for row in rows] == SCHEDULERS
    assert rows[0][2] == "1.00"
    # ios-both takes as long as ios-merge, the simpler one, which is named; its proof counts.
    assert rows[2][1:3] == rows[4][1:3]
    assert f"Best: ios-merge, {rows[2][1]} ms, speed-up {rows[2][2]}x over sequential" in lines
    assert lines[-2] == "Provably optimal under this cost model (general stages)"
    assert lines[-1].startswith("With --engine graph it takes ")
    # Beside the simulator's figures stand the published ones.
    assert "published" in text
    assert "0.98" in rows[1]


def test_fp32_that_nobody_chose_is_remarked_on_tensor_cores() -> None:
    """The remark's figure is the one that --dtype bf16 prints."""
    for asked in ("v100-sxm2", "h100-sxm --dtype fp32", "h100-sxm --json"):
        assert "(the default)" not in printed(f"compare ios_sample -d {asked}")
    shown = [printed(f"compare squeezenet -d h100-sxm --schedulers sequential{how}") for how in ("", " --dtype bf16")]
    (fp32, *_), (bf16, *_) = (re.findall(r"^sequential\S* +(\S+)", one, re.MULTILINE) for one in shown)
    assert f"With --dtype bf16 sequential takes {bf16} ms, in fp32 (the default) {fp32} ms" in shown[0]


@pytest.mark.parametrize(
    ("command", "starts"),
    [
        ("compare", ["≈ tied with", "Best: no", "Expected", "Provably", "With --engine graph it takes "]),
        ("optimize", ["1.570 ms in", "Lower bound", "Expected", "Tied with", "Provably", "note: With --engine graph it takes "]),
    ],
)  # fmt: skip
def test_the_page_has_every_sentence_of_the_terminal(
    command: str, starts: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a network that no schedule makes faster: ties, the interval and the other engine among them."""
    monkeypatch.setenv("COLUMNS", "200")
    said = printed(f"{command} gpt2 -d v100-sxm2 --out {tmp_path} --no-trace").splitlines()[-len(starts) :]
    assert all(line.startswith(start) for line, start in zip(said, starts, strict=True))
    page = unescape((tmp_path / "index.html").read_text(encoding="utf-8"))
    assert [line for line in said if f">{line.removeprefix('note: ')}</p>" not in page.replace(">note: ", ">")] == []
    (interval,) = re.findall(r"Expected on hardware: (1\.\d+-1\.\d+ ms) \(90% interval\)", "\n".join(said))
    assert f"1.570 ms simulated, {interval} expected on hardware (90% interval)" in page


def test_table_says_what_was_not_searched() -> None:
    pruned = printed("compare squeezenet -d t4 -r 3 -s 2 --stages paper").replace("\n", " ")
    assert "(paper stages, groups of at most 3 units, at most 2 groups)" in pruned
    split = printed("compare squeezenet -d t4 --max-block 4").replace("\n", " ")
    assert "'fire2'" in split
    assert "Not proven optimal" in split


def test_graph_engine_is_never_dearer() -> None:
    """One launch instead of many, and no synchronisation between stages."""
    paper, graph = (
        printed_json(f"compare squeezenet -d v100-sxm2 --engine {engine} --json") for engine in ("paper", "graph")
    )
    for one, other in zip(graph["schedules"], paper["schedules"], strict=True):
        assert one["latency_us"] <= other["latency_us"]


def test_graphs(shared: Path) -> None:
    folders = sorted(
        {path.parent for path in (shared / "data").rglob("*.txt") if "randwire" in str(path.parent).lower()}
    )
    if not folders:
        pytest.skip("no edge lists of RandWire in the reference data")
    given = printed_json(["search-space", "randwire", "--graphs", str(folders[0]), "-r", "1", "-s", "2", "--json"])
    drawn = printed_json("search-space randwire -r 1 -s 2 --json")
    assert given["totals"]["units"] == drawn["totals"]["units"]
    assert given["blocks"] != drawn["blocks"]


def test_files_of_a_comparison(tmp_path: Path) -> None:
    out = tmp_path / "out"
    comparison = printed_json(["compare", "squeezenet", "-d", "t4", "--json", "--out", str(out)])
    names = {path.name for path in out.iterdir()}
    assert names >= {"comparison.json", "schedule.json", "trace.json", "graph.svg", "timeline.svg", "timeline.png"}
    assert names >= {"comparison.svg", "comparison.png"}
    assert json.loads((out / "comparison.json").read_text()) == comparison
    best = json.loads((out / "schedule.json").read_text())
    assert best["scheduler"] == "ios-both"
    assert best["latency_us"] == comparison["joins"]["schedules"][-1]["latency_us"]
    assert best["latency_us"] < min(found["latency_us"] for found in comparison["schedules"])
