"""Files of scenarios: what is read back, and every mistake as one line with file, line, field and remedy."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
import yaml

from iossim.base.errors import IossimError, ScenarioError
from iossim.base.located_yaml import LocatedYamlError, read_located
from iossim.study.points import points_of
from iossim.study.scenario import Scenario
from iossim.study.scenario_file import MODELINE, parse_scenario, read_scenario, scenario_names, write_scenario

VALID = """\
# yaml-language-server: $schema=../docs/schemas/scenario.json
name: whole
title: All that a scenario can say
models:
  - squeezenet
  - {model: inception_v3, block: mixed_7c, label: last block}
devices:
  - t4
  - device: v100-sxm2
    set: {dram_gbps: 450, sms: 40}
batch_sizes: [1, 8]
dtypes: [fp32]
engines: [paper]
cost_models: [simulator]
searches: [{max_group_size: 3, max_groups: 8}]
workspace: [none]
schedulers: [sequential, ios-both]
rewrites: [none]
# Questions and claims:
questions:
  - {metric: latency_ms, at_most: 10}
  # The next one is no claim.
  - {smallest: device, having: {latency_ms: {at_most: 5}}}
published:
  - says: It is faster
    source: somewhere
    claims: [{best: scheduler, expect: ios-both}]
seed: 3
"""


def changed(old: str, new: str) -> str:
    assert VALID.count(old) == 1, old
    return VALID.replace(old, new)


#: What is wrong: the file, the line and the field that are named, and words of the reason and the remedy.
MALFORMED: list[tuple[Any, ...]] = [
    ("", 1, "", "not a mapping", "begin with 'name: ...'"),
    ("- name\n", 1, "", "not a mapping", "begin with"),
    (changed("  - t4", "\t- t4"), 8, "", "not YAML", "'\\t'", "correct the line"),
    (changed("[1, 8]", "[1, 8"), 12, "", "not YAML", "correct the line"),
    (changed("title: All", "title: 'All"), 29, "", "not YAML", "quoted scalar", "correct the line"),
    (changed("All that", "All \x07 that"), 3, "", "not YAML", "correct the line"),
    (VALID + "---\nname: more\n", 29, "", "not YAML", "another document", "correct the line"),
    (changed("[1, 8]", "&sizes [1, 8]"), 11, "", "&sizes", "write the value out"),
    ("a: &a [x, x]\nb: &b [*a, *a]\nc: [*b, *b]\n", 1, "", "&a", "write the value out"),
    (f"name: {'[' * 5000}", 1, "", "nested more than 20 deep", "close one"),
    (VALID + "seed: 4\n", 29, "seed", "given twice, first in line 28", "leave one out"),
    (VALID + "[a, b]: 4\n", 29, "", "a key is a list", "write a name"),
    (changed("seed: 3", "seed: !!python/object/apply:os.getcwd []"), 28, "seed", "is a list", "whole"),
    (changed("seed: 3", "seed: !secret 3"), 28, "", "!secret", "correct the line"),
    (changed("seed: 3", "seed: 2001-13-40"), 28, "seed", "2001-13-40", "quotes"),
    (changed("name: whole\n", ""), 1, "name", "is missing", "write 'name: ...'"),
    (changed("name: whole", "name: 2022"), 2, "name", "is 2022", "quotes"),
    (changed("name: whole", "name: Whole thing"), 2, "name", "'Whole thing'", "small letters"),
    (changed("batch_sizes", "batchsizes"), 11, "batchsizes", "not known", "did you mean 'batch_sizes'?"),
    (changed("block:", "blok:"), 6, "models[1].blok", "not known", "did you mean 'block'?"),
    (changed("    source: somewhere\n", ""), 25, "published[0].source", "is missing", "write 'source: ...'"),
    (changed("[1, 8]", "8"), 11, "batch_sizes", "is 8, not a list", "write [8]"),
    (changed("  - squeezenet", "  - 7"), 5, "models[0]", "is 7", "write a mapping of fields, or a name"),
    (changed("[1, 8]", "[1, eight]"), 11, "batch_sizes[1]", "'eight'", "write a whole number"),
    (changed("[1, 8]", "[1, 2.5]"), 11, "batch_sizes[1]", "2.5", "write a whole number"),
    (changed("[1, 8]", "[1, 0]"), 11, "batch_sizes[1]", "is 0", "give at least 1"),
    (changed("[1, 8]", "[]"), 11, "batch_sizes", "is empty", "give at least one"),
    (changed("[1, 8]", ""), 11, "batch_sizes", "is empty, not a list", "write"),
    (changed("  - squeezenet", "  - squeezent"), 5, "models[0]", "unknown model 'squeezent'", "did you mean 'squeezenet'?"),
    (changed("  - squeezenet", "  - nets/mine.onnx"), 5, "models[0]", "nets/mine.onnx' does not exist", "give an ONNX file"),
    (changed("block: mixed_7c", "units: fussed"), 6, "models[1].units", "unknown unit policy", "did you mean 'fused'?"),
    (changed("title:", "units: fussed\ntitle:"), 3, "units", "unknown unit policy 'fussed'", "did you mean 'fused'?"),
    (changed("  - t4", "  - t5"), 8, "devices[0]", "unknown device 't5'", "did you mean 't4'?"),
    (changed("  - t4", "  - mine.yaml"), 8, "devices[0]", "mine.yaml: No such file", "give a YAML file"),
    (changed("  - t4", "  - t4\n  - t4"), 9, "devices[1]", "there twice", "another 'label'"),
    (changed("dram_gbps: 450", "dram_gpbs: 450"), 10, "devices[1].set", "'dram_gpbs'", "did you mean 'dram_gbps'?"),
    (changed("sms: 40", "sms: 40.5"), 10, "devices[1].set", "'sms' is 40.5", "give a whole number"),
    (changed("450", "-450"), 10, "devices[1].set", "'dram_gbps' is -450", "give more than 0"),
    (changed("450", ".inf"), 10, "devices[1].set.dram_gbps", "is inf", "write a finite number"),
    (changed("sms: 40", "dram_bandwidth_gbps: 500"), 10, "devices[1].set", "are the same", "give one of them"),
    (changed("sms: 40", "fp32_tflops: 9"), 10, "devices[1].set", "follows from", "set sm_count"),
    (changed("sms: 40", "gemm_efficiency: 1.2"), 10, "devices[1].set", "parameters.gemm_efficiency", "change the value"),
    (changed("[fp32]", "[fp31]"), 12, "dtypes[0]", "unknown dtype", "did you mean 'fp32'?"),
    (changed("[paper]", "[papers]"), 13, "engines[0]", "unknown engine", "did you mean 'paper'?"),
    (changed("[simulator]", "[simulater]"), 14, "cost_models[0]", "unknown cost model", "did you mean 'simulator'?"),
    (changed("[simulator]", '["table:mine.json"]'), 14, "cost_models[0]", "mine.json' does not exist", "give the file"),
    (changed("max_groups: 8", "stages: papers"), 15, "searches[0].stages", "'papers'", "did you mean 'paper'?"),
    (changed("workspace: [none]", "combine: zip"), 16, "combine", "is no longer a field", "a list 'points'"),
    (changed("workspace: [none]", "constraints: []"), 16, "constraints", "is no longer a field", "ask in 'questions'"),
    (changed("workspace: [none]", "points: []"), 16, "points", "is empty", "leave the field out"),
    (changed("workspace: [none]", "points: [{device: t4, batch: 8}]"), 16, "points", "no 'model'", "write 'model: ...'"),
    (changed("workspace: [none]", "points: [{device: t5, model: squeezenet, batch: 8}]"), 16, "points", "points[0].device: no device is called 't5'", "list it in devices; did you mean 't4'?"),
    (changed("workspace: [none]", "points: [{model: squeezenet, device: t4, batch: 8, search: narrow}]"), 16, "points", "no search is called 'narrow'", "list it in searches; known: r=3 s=8"),
    (changed("workspace: [none]", "points: [{model: squeezenet, device: {device: t4}, batch: 8}]"), 16, "points[0].device", "is a mapping"),
    (changed("[sequential, ios-both]", "[sequential, ios]"), 17, "schedulers[1]", "unknown scheduler", "did you mean 'ios-both'?"),
    (changed("[sequential, ios-both]", "[]"), 17, "schedulers", "is empty", "leave the field out"),
    (changed("[1, 8]", "[1]").replace("at_most: 10}", "at_most: 10}\n  - {specialised_for: batch}"), 22, "questions[1]", "'batch' has one value", "give batch_sizes another"),
    (changed("workspace: [none]", "cross_evaluate: [batch]"), 16, "cross_evaluate", "is no longer a field", "{specialised_for: batch}"),
    (changed("workspace: [none]", "measures: [active_warps]"), 16, "measures", "is no longer a field", "{metric: active_warps}"),
    (changed("metric: latency_ms", "metric: latncy_ms"), 21, "questions[0].metric", "no metric", "did you mean 'latency_ms'?"),
    (changed("at_most: 10", "atmost: 10"), 21, "questions[0].atmost", "not known", "did you mean 'at_most'?"),
    (changed("at_most: 10", "below: sequential"), 21, "questions[0].below", "is 'sequential'", "labels to compare with in 'over'"),
    (changed("at_most: 10", "at_most: []"), 21, "questions[0].at_most", "is a list", "write a number"),
    (changed("at_most: 5", "at_mst: 5"), 23, "questions[1].having.latency_ms.at_mst", "not known", "did you mean 'at_most'?"),
    (changed("{smallest: device, having: {latency_ms: {at_most: 5}}}", "smallest device under 5 ms"), 23, "questions[1]", "is 'smallest device under 5 ms'", "write a mapping of fields"),
    (changed("{metric: latency_ms, at_most: 10}", "latency_ms <= 10"), 21, "questions[0]", "write a mapping of fields"),
    (changed("{best: scheduler, expect: ios-both}", "{best: scheduler}"), 27, "published[0].claims[0]", "this is a question", "add 'expect: LABEL'"),
    (changed("seed: 3", "plots: [speedups]"), 28, "plots[0]", "plot 'speedups' is not known", "did you mean 'speedup'?"),
    (changed("seed: 3", "seed: -3"), 28, "seed", "is -3", "give at least 0"),
    (changed("[1, 8]", str(list(range(1, 3001)))).replace("[fp32]", "[fp32, tf32, fp16, bf16, int8]").replace("[paper]", "[paper, graph]"), 1, "", "120,000 points", "shorten the lists"),
    (changed("[1, 8]", "[1, yes]"), 11, "batch_sizes[1]", "is true", "write a whole number"),
    (changed("450", "fast"), 10, "devices[1].set.dram_gbps", "'fast'", "write a number"),
    (changed("    claims:", "    claim:"), 27, "published[0].claim", "is no longer a field", "write 'claims'"),
    (changed("    claims:", "    clams:"), 27, "published[0].clams", "not known", "did you mean 'claims'?"),
    (changed("{best: scheduler, expect: ios-both}", "{best: scheduler, expect: ios-both}, {metric: speedup}"), 27, "published[0].claims[1]", "this is a question"),
]  # fmt: skip


def refusal(text: str, path: Path) -> str | None:
    """What is said against a file; None where it is read."""
    try:
        assert isinstance(parse_scenario(text, path), Scenario)
    except IossimError as error:
        return str(error)
    return None


def test_a_whole_scenario_is_read_with_defaults_filled_in_and_written_again(tmp_path: Path) -> None:
    path = tmp_path / "whole.yaml"
    path.write_text(VALID)
    scenario = read_scenario(path)
    assert [model.label for model in scenario.models] == ["squeezenet", "last block"]
    assert scenario.devices[1].label == "v100-sxm2 (dram_gbps=450, sms=40)"
    assert scenario.searches[0].label == "r=3 s=8"
    write_scenario(scenario, tmp_path / "again.yaml")
    assert read_scenario(tmp_path / "again.yaml") == scenario
    assert VALID.startswith(MODELINE)


@pytest.mark.parametrize(("text", "line", "field", "words"), [(*case[:3], case[3:]) for case in MALFORMED])
def test_a_mistake_is_one_line_with_file_line_field_and_remedy(
    text: str, line: int, field: str, words: tuple[str, ...], tmp_path: Path
) -> None:
    path = tmp_path / "study.yaml"
    path.write_text(text)
    with pytest.raises(ScenarioError) as caught:
        read_scenario(path)
    told, place = str(caught.value), f"scenario {path}, line {line}{f', field {field}' if field else ''}"
    assert "\n" not in told
    assert told.startswith((f"{place}:", f"{place}."))
    assert [word for word in words if word not in told] == [], told


#: Mistakes in what a study of one model may say besides.
ASKED_TOO_MUCH = {
    "rewrites: [metaflo]": "field rewrites[0]: unknown rules 'metaflo'; did you mean 'metaflow'",
    "rewrites: [{rules: default, alpha: 0.5}]": "field rewrites[0].alpha: is 0.5",
    "rewrites: [{rules: default, scheduler: greedy}]": "field rewrites[0].scheduler: is 'greedy'",
    "rewrites: [none, none]": "is there twice",
    "rewrites: [{rules: default, search: joined}]": "field rewrites[0].search: is 'joined'",
    "workspace: [64]": "workspace[0]",
    "workspace: ['64']": "'64' is not a size; say 64MiB",
    "workspace: [8MiB, 8MiB]": "is there twice",
    "workspace: [{total: 8, policy: all}]": "workspace[0].total",
    "workspace: [8MiB]\nbatch_sizes: [1, 2]\nquestions: [{specialised_for: batch}]": "without a limit on workspace",
    "dataflow: [priority]": "device 't4' is no edge device",
    "questions: [{metric: shared_mib}]": "shared_mib is known of edge devices alone",
}
#: The same of a study of an edge device.
EDGE = {
    "": "is an edge device; write 'dataflow: [priority]'",
    "dataflow: [fast]": "dataflow[0]",
    "dataflow: [priority, none]": "list no 'none' beside policies",
    "dataflow: [{devices: 2, link: can}]": "no link 'can'; it has srio",
    "dataflow: [{devices: 2}]\nschedulers: [vanilla, full]": "unknown scheduler 'vanilla'; known: full",
    "dataflow: [priority]\nschedulers: [greedy]": "unknown scheduler 'greedy'",
    "dataflow: [priority]\nengines: [graph]": "field engines: says nothing of edge devices",
    "dataflow: [priority]\nquestions: [{metric: peak_memory_mib}]": "is known of GPUs and processors alone",
    "dataflow: [priority]\nquestions: [{specialised_for: batch}]": "are priced at their own points alone",
    "dataflow: [priority, {policy: priority}]": "is there twice",
}


@pytest.mark.parametrize(
    ("device", "lines", "reason"),
    [(device, *case) for device, cases in (("t4", ASKED_TOO_MUCH), ("c6678", EDGE)) for case in cases.items()],
)
def test_a_mistake_on_an_axis_is_named(device: str, lines: str, reason: str, tmp_path: Path) -> None:
    told = refusal(f"name: w\nmodels: [squeezenet]\ndevices: [{device}]\n{lines}\n", tmp_path / "w.yaml")
    assert reason in str(told)


def test_all_that_is_wrong_is_counted_and_the_first_is_told(tmp_path: Path) -> None:
    text = changed("  - t4", "  - t5").replace("[fp32]", "[fp31]").replace("[paper]", "[ink]")
    with pytest.raises(ScenarioError, match=r"line 8, field devices\[0\]: unknown device 't5'.*\(and 2 more\)$"):
        parse_scenario(text, tmp_path / "study.yaml")


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(ScenarioError, match=r"cannot read scenario .*missing.yaml: No such file.*; give"):
        read_scenario(tmp_path / "missing.yaml")
    (tmp_path / "rows.csv").touch()
    for name, kind in (("rows.csv", "no .yaml file"), ("", "a folder"), ("s.csv", "neither a name nor a .yaml file")):
        with pytest.raises(ScenarioError, match=f"^scenario '.*{name}' is {kind}; give a scenario's YAML file, or"):
            read_scenario(tmp_path / name)
    (tmp_path / "binary.yaml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ScenarioError, match=r"binary.yaml is not text; give"):
        read_scenario(tmp_path / "binary.yaml")
    (tmp_path / "large.yaml").write_text("name: a\n" + "#" * (1 << 20))
    with pytest.raises(ScenarioError, match=r"large.yaml, line 1: has 1,048,584 characters; at most"):
        read_scenario(tmp_path / "large.yaml")


def test_names_of_scenarios_that_ship_and_near_them() -> None:
    assert "batch_specialisation" in scenario_names()
    assert read_scenario("batch_specialisation").name == "batch_specialisation"
    with pytest.raises(ScenarioError, match=r"unknown scenario 'batch_spec'; did you mean 'batch_specialisation'\?"):
        read_scenario("batch_spec")


def test_a_folder_of_results_hides_no_scenario_of_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """docs/howto/choosing_a_gpu.md writes which_gpu to which_gpu; no study was listed beside that folder."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "which_gpu").mkdir()
    (tmp_path / "mine").mkdir()
    assert read_scenario("which_gpu").name == "which_gpu"
    with pytest.raises(ScenarioError, match="scenario 'mine' is a folder"):
        read_scenario("mine")


def test_paths_are_relative_to_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "nets").mkdir()
    (tmp_path / "nets" / "tiny.onnx").write_bytes(b"anything: it is not loaded")
    from iossim.hardware.load import device
    from iossim.hardware.write import write_profile

    write_profile(device("t4"), tmp_path / "board.yaml")
    text = """\
name: paths
models: [nets/tiny.onnx, {model: ./nets/tiny.onnx, label: again}]
devices: [board.yaml]
points: [{model: tiny}, {model: again}]
"""
    (tmp_path / "paths.yaml").write_text(text)
    monkeypatch.chdir("/")
    scenario = read_scenario(tmp_path / "paths.yaml")
    whole = str(tmp_path / "nets" / "tiny.onnx")
    assert [model.model for model in scenario.models] == [whole, whole]
    assert [model.label for model in scenario.models] == ["tiny", "again"]
    assert scenario.devices[0].device == str(tmp_path / "board.yaml")
    assert [point.model.label for point in points_of(scenario)] == ["tiny", "again"]
    write_scenario(scenario, tmp_path / "resolved.yaml")
    assert read_scenario(tmp_path / "resolved.yaml") == scenario


def test_scenarios_that_are_mutated_are_read_or_refused_in_one_line(tmp_path: Path) -> None:
    """Lines dropped, doubled and exchanged, characters changed, words of the file put elsewhere."""
    stream = random.Random(6)
    words = [
        *VALID.split(),
        *["{", "}", "[", "]", ":", "-", "&a", "*a", "!!int", "null", "1e400", "é", "\x00", "'", '"', "%"],
    ]
    refused = 0
    for _ in range(80):
        lines = VALID.splitlines(keepends=True)
        for _ in range(stream.randint(1, 3)):
            at = stream.randrange(len(lines))
            kind = stream.randrange(5)
            if kind == 0 and len(lines) > 1:
                del lines[at]
            elif kind == 1:
                lines.insert(at, lines[stream.randrange(len(lines))])
            elif kind == 2:
                lines[at] = lines[at].replace(*stream.sample(words, 2), 1)
            elif kind == 3:
                cut = stream.randint(0, len(lines[at]))
                lines[at] = lines[at][:cut] + stream.choice(words) + lines[at][cut:]
            else:
                lines[at] = lines[at][: stream.randint(0, len(lines[at]))] + "\n"
        told = refusal("".join(lines), tmp_path / "mutant.yaml")
        if told is not None:
            refused += 1
            assert "\n" not in told
            assert told.startswith(f"scenario {tmp_path / 'mutant.yaml'}, line ")
    assert refused > 40


def test_lines_and_values_are_those_of_the_file() -> None:
    located = read_located("a: 1e3\nb:\n  - on\n  - {c: 0x10, d: '5'}\n")
    assert located.values == {"a": 1000.0, "b": [True, {"c": 16, "d": "5"}]}
    assert located.lines == {(): 1, ("a",): 1, ("b",): 2, ("b", 0): 3, ("b", 1): 4, ("b", 1, "c"): 4, ("b", 1, "d"): 4}
    assert located.nearest(("b", 1, "x", 4)) == ("b", 1)
    assert read_located(VALID).values == yaml.safe_load(VALID)
    with pytest.raises(LocatedYamlError):
        read_located("a: {b: 1, b: 2}")
