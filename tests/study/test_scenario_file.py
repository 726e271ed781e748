"""Files of scenarios: what is read back, and every mistake as one line with file, line, field and remedy."""

from __future__ import annotations

import random
from pathlib import Path

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
combine: grid
schedulers: [sequential, ios-both]
cross_evaluate: [batch]
measures: [active_warps]
constraints:
  - {metric: latency_ms, at_most: 10}
questions:
  - {smallest: device, having: {latency_ms: {at_most: 5}}}
published:
  - says: It is faster
    source: somewhere
    claim: {best: scheduler, expect: ios-both}
seed: 3
"""


def changed(old: str, new: str) -> str:
    assert VALID.count(old) == 1, old
    return VALID.replace(old, new)


#: What is wrong: the file, the line that is named, the field, and words of the reason and the remedy.
MALFORMED: dict[str, tuple[str, int, str, tuple[str, ...]]] = {
    "an empty file": ("", 1, "", ("not a mapping", "begin with 'name: ...'")),
    "a list": ("- name\n", 1, "", ("not a mapping", "begin with")),
    "text": ("what if?\n", 1, "", ("not a mapping", "begin with")),
    "a tab": (changed("  - t4", "\t- t4"), 8, "", ("not YAML", "'\\t'", "correct the line")),
    "an open bracket": (changed("[1, 8]", "[1, 8"), 12, "", ("not YAML", "correct the line")),
    "an open quote": (changed("title: All", "title: 'All"), 29, "", ("not YAML", "quoted scalar", "correct the line")),
    "a control character": (changed("All that", "All \x07 that"), 3, "", ("not YAML", "correct the line")),
    "two documents": (VALID + "---\nname: more\n", 29, "", ("not YAML", "another document", "correct the line")),
    "an alias": (changed("[1, 8]", "&sizes [1, 8]"), 11, "", ("&sizes", "write the value out")),
    "a bomb": ("a: &a [x, x]\nb: &b [*a, *a]\nc: [*b, *b]\n", 1, "", ("&a", "write the value out")),
    "nesting": (f"name: {'[' * 5000}", 1, "", ("nested more than 20 deep", "close one")),
    "a key twice": (VALID + "seed: 4\n", 29, "seed", ("given twice, first in line 28", "leave one out")),
    "a key that is a list": (VALID + "[a, b]: 4\n", 29, "", ("a key is a list", "write a name")),
    "a Python object": (changed("seed: 3", "seed: !!python/object/apply:os.getcwd []"), 28, "seed", ("is a list", "whole")),
    "a tag": (changed("seed: 3", "seed: !secret 3"), 28, "", ("!secret", "correct the line")),
    "a day that is none": (changed("seed: 3", "seed: 2001-13-40"), 28, "seed", ("2001-13-40", "quotes")),
    "no name": (changed("name: whole\n", ""), 1, "name", ("is missing", "write 'name: ...'")),
    "a name of a number": (changed("name: whole", "name: 2022"), 2, "name", ("is 2022", "quotes")),
    "a name with a space": (changed("name: whole", "name: Whole thing"), 2, "name", ("'Whole thing'", "small letters")),
    "an unknown field": (changed("batch_sizes", "batchsizes"), 11, "batchsizes", ("not known", "did you mean 'batch_sizes'?")),
    "an unknown field of a model": (changed("block:", "blok:"), 6, "models[1].blok", ("not known", "did you mean 'block'?")),
    "an unknown field of a device": (changed("set:", "sett:"), 10, "devices[1].sett", ("not known", "did you mean 'set'?")),
    "an unknown field of a search": (
        changed("max_groups", "maxgroups"), 15, "searches[0].maxgroups", ("not known", "did you mean 'max_groups'?")),
    "an unknown field of a publication": (
        changed("    claim:", "    claims:"), 27, "published[0].claims", ("not known", "did you mean 'claim'?")),
    "a publication without source": (
        changed("    source: somewhere\n", ""), 25, "published[0].source", ("is missing", "write 'source: ...'")),
    "a list that is none": (changed("[1, 8]", "8"), 11, "batch_sizes", ("is 8, not a list", "write [8]")),
    "a model that is none": (changed("  - squeezenet", "  - 7"), 5, "models[0]", ("is 7", "write a name, or a mapping")),
    "a batch of text": (changed("[1, 8]", "[1, eight]"), 11, "batch_sizes[1]", ("'eight'", "write a whole number")),
    "a batch of half": (changed("[1, 8]", "[1, 2.5]"), 11, "batch_sizes[1]", ("2.5", "write a whole number")),
    "a batch of nothing": (changed("[1, 8]", "[1, 0]"), 11, "batch_sizes[1]", ("is 0", "give at least 1")),
    "a batch that is true": (changed("[1, 8]", "[1, yes]"), 11, "batch_sizes[1]", ("is true", "write a whole number")),
    "a batch twice": (changed("[1, 8]", "[8, 8]"), 11, "batch_sizes[1]", ("there twice", "leave one out")),
    "no batch": (changed("[1, 8]", "[]"), 11, "batch_sizes", ("is empty", "give at least one")),
    "an empty value": (changed("[1, 8]", ""), 11, "batch_sizes", ("is empty, not a list", "write")),
    "an unknown model": (
        changed("  - squeezenet", "  - squeezent"), 5, "models[0]", ("unknown model 'squeezent'", "did you mean 'squeezenet'?")),
    "a model file that is not there": (
        changed("  - squeezenet", "  - nets/mine.onnx"), 5, "models[0]", ("nets/mine.onnx' does not exist", "give an ONNX file")),
    "an unknown unit policy": (
        changed("block: mixed_7c", "units: fussed"), 6, "models[1].units", ("unknown unit policy", "did you mean 'fused'?")),
    "a block limit of nothing": (
        changed("block: mixed_7c", "max_block: 0"), 6, "models[1].max_block", ("is 0", "give at least 1")),
    "an unknown device": (changed("  - t4", "  - t5"), 8, "devices[0]", ("unknown device 't5'", "did you mean 't4'?")),
    "a profile that is not there": (
        changed("  - t4", "  - mine.yaml"), 8, "devices[0]", ("mine.yaml: No such file", "give a YAML file")),
    "a device twice": (changed("  - t4", "  - t4\n  - t4"), 9, "devices[1]", ("there twice", "another 'label'")),
    "an unknown fact": (
        changed("dram_gbps: 450", "dram_gpbs: 450"), 10, "devices[1].set", ("'dram_gpbs'", "did you mean 'dram_gbps'?")),
    "half an SM": (changed("sms: 40", "sms: 40.5"), 10, "devices[1].set", ("'sms' is 40.5", "give a whole number")),
    "a negative bandwidth": (changed("450", "-450"), 10, "devices[1].set", ("'dram_gbps' is -450", "give more than 0")),
    "a fact of text": (changed("450", "fast"), 10, "devices[1].set.dram_gbps", ("'fast'", "write a number")),
    "a fact without end": (changed("450", ".inf"), 10, "devices[1].set.dram_gbps", ("is inf", "write a finite number")),
    "a fact by two names": (
        changed("sms: 40", "dram_bandwidth_gbps: 500"), 10, "devices[1].set", ("are the same", "give one of them")),
    "a fact that follows": (changed("sms: 40", "fp32_tflops: 9"), 10, "devices[1].set", ("follows from", "set sm_count")),
    "an efficiency above 1": (
        changed("sms: 40", "gemm_efficiency: 1.2"), 10, "devices[1].set", ("parameters.gemm_efficiency", "change the value")),
    "an unknown dtype": (changed("[fp32]", "[fp31]"), 12, "dtypes[0]", ("unknown dtype", "did you mean 'fp32'?")),
    "an unknown engine": (changed("[paper]", "[papers]"), 13, "engines[0]", ("unknown engine", "did you mean 'paper'?")),
    "an unknown cost model": (
        changed("[simulator]", "[simulater]"), 14, "cost_models[0]", ("unknown cost model", "did you mean 'simulator'?")),
    "a table that is not there": (
        changed("[simulator]", '["table:mine.json"]'), 14, "cost_models[0]", ("mine.json' does not exist", "give the file")),
    "a pruning of nothing": (
        changed("max_groups: 8", "max_groups: 0"), 15, "searches[0].max_groups", ("is 0", "give at least 1")),
    "an unknown definition of stages": (
        changed("max_groups: 8", "stages: papers"), 15, "searches[0].stages", ("'papers'", "did you mean 'paper'?")),
    "an unknown way to combine": (changed("combine: grid", "combine: zipp"), 16, "combine", ("did you mean 'zip'?",)),
    "a zip of unequal lists": (
        changed("combine: grid", "combine: zip").replace("[1, 8]", "[1, 2, 3]"), 16, "combine", ("batch_sizes 3", "make them so")),
    "points beside lists": (
        VALID + "points: [{batch: 8}]\n", 16, "combine", ("points are listed", "leave one of them out")),
    "a point without a model": (
        changed("combine: grid", "points: [{device: t4, batch: 8}]"), 16, "points", ("no 'model'", "write 'model: ...'")),
    "a point with a wrong device": (
        changed("combine: grid", "points:\n  - {device: t5, model: squeezenet, batch: 8}"), 17, "points[0].device",
        ("unknown device 't5'", "did you mean 't4'?")),
    "a point with a search that is not listed": (
        changed("combine: grid", "points: [{model: squeezenet, device: t4, batch: 8, search: narrow}]"), 16, "points",
        ("no search is called 'narrow'", "known: r=3 s=8")),
    "two devices of one name": (
        changed("combine: grid", "points:\n  - {model: squeezenet, device: t4, batch: 8}\n"
                "  - {model: squeezenet, device: {device: t4, label: t4, set: {sms: 9}}, batch: 8}"), 18, "points[1].device",
        ("another device is called 't4' too", "give one of them a 'label'")),
    "an unknown scheduler": (
        changed("[sequential, ios-both]", "[sequential, ios]"), 17, "schedulers[1]", ("unknown scheduler", "did you mean 'ios-both'?")),
    "no scheduler": (changed("[sequential, ios-both]", "[]"), 17, "schedulers", ("is empty", "leave the field out")),
    "an unknown axis": (changed("[batch]", "[bach]"), 18, "cross_evaluate[0]", ("'bach'", "did you mean 'batch'?")),
    "nothing to price across": (
        changed("[1, 8]", "[1]"), 18, "cross_evaluate[0]", ("'batch' has one value", "give batch_sizes another")),
    "an unknown measure": (
        changed("[active_warps]", "[warps]"), 19, "measures[0]", ("'warps'", "did you mean 'active_warps'?")),
    "a constraint on no metric": (
        changed("metric: latency_ms", "metric: latncy_ms"), 21, "constraints[0].metric", ("no metric", "did you mean 'latency_ms'?")),
    "a constraint by an unknown bound": (
        changed("at_most: 10", "atmost: 10"), 21, "constraints[0].atmost", ("not known", "did you mean 'at_most'?")),
    "a constraint of text": (changed("at_most: 10", "at_most: []"), 21, "constraints[0].at_most", ("is a list", "write a label")),
    "a metric that is not measured": (
        changed("metric: latency_ms", "metric: peak_memory_mib"), 21, "constraints[0]", ("write 'measures: [peak_memory]'",)),
    "a question of no axis": (
        changed("smallest: device", "smallest: devce"), 23, "questions[0].smallest", ("'devce'", "did you mean 'device'?")),
    "a question with an unknown key": (
        changed("having:", "haveing:"), 23, "questions[0].haveing", ("not known", "did you mean 'having'?")),
    "a condition with an unknown bound": (
        changed("at_most: 5", "at_mst: 5"), 23, "questions[0].having.latency_ms.at_mst", ("not known", "did you mean 'at_most'?")),
    "a question in the sentences of old": (
        changed("{smallest: device, having: {latency_ms: {at_most: 5}}}", "smallest device under 5 ms"), 23, "questions[0]",
        ("is a sentence, which is no longer read", "write a mapping, as '{best: scheduler}'", "docs/studies.md")),
    "a claim in the sentences of old": (
        changed("{best: scheduler, expect: ios-both}", "ios-both is fastest"), 27, "published[0].claim", ("is a sentence",)),
    "a constraint in the sentences of old": (
        changed("{metric: latency_ms, at_most: 10}", "latency_ms <= 10"), 21, "constraints[0]", ("is a sentence",)),
    "a claim of an unknown scheduler": (
        changed("expect: ios-both", "expect: ios-bth"), 27, "published[0].claim", ("did you mean 'ios-both'?",)),
    "a claim that asks": (
        changed("{best: scheduler, expect: ios-both}", "{best: scheduler}"), 27, "published[0].claim", ("this is a question", "add 'expect: LABEL'")),
    "a claim of two, of which one asks": (
        changed("{best: scheduler, expect: ios-both}", "[{best: scheduler, expect: ios-both}, {metric: speedup}]"), 27,
        "published[0].claim", ("this is a question",)),
    "a specialisation that is not priced": (
        changed("{best: scheduler, expect: ios-both}", "{specialised_for: device}"), 27, "published[0].claim",
        ("write 'cross_evaluate: [device]'",)),
    "an unknown plot": (
        changed("seed: 3", "plots: [speedups]"), 28, "plots[0]", ("plot 'speedups' is not known", "did you mean 'speedup'?")),
    "a seed below 0": (changed("seed: 3", "seed: -3"), 28, "seed", ("is -3", "give at least 0")),
    "a grid without end": (
        changed("[1, 8]", str(list(range(1, 3001)))).replace("[fp32]", "[fp32, tf32, fp16, bf16, int8]")
        .replace("[paper]", "[paper, graph]"), 16, "combine", ("120,000 points", "shorten the lists")),
}  # fmt: skip


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
    assert len(MALFORMED) >= 50


@pytest.mark.parametrize("kind", MALFORMED)
def test_a_mistake_is_one_line_with_file_line_field_and_remedy(kind: str, tmp_path: Path) -> None:
    text, line, field, words = MALFORMED[kind]
    path = tmp_path / "study.yaml"
    path.write_text(text)
    with pytest.raises(ScenarioError) as caught:
        read_scenario(path)
    told = str(caught.value)
    assert "\n" not in told
    assert told.startswith(f"scenario {path}, line {line}{f', field {field}' if field else ''}")
    assert told[len(f"scenario {path}, line {line}{f', field {field}' if field else ''}")] in ":."
    assert [word for word in words if word not in told] == [], told


def test_all_that_is_wrong_is_counted_and_the_first_is_told(tmp_path: Path) -> None:
    text = changed("  - t4", "  - t5").replace("[fp32]", "[fp31]").replace("[paper]", "[ink]")
    with pytest.raises(ScenarioError, match=r"line 8, field devices\[0\]: unknown device 't5'.*\(and 2 more\)$"):
        parse_scenario(text, tmp_path / "study.yaml")


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(ScenarioError, match=r"cannot read scenario .*missing.yaml: No such file.*; give"):
        read_scenario(tmp_path / "missing.yaml")
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


@pytest.mark.parametrize("name", scenario_names())
def test_what_ships_is_valid_and_called_as_its_file(name: str) -> None:
    scenario = read_scenario(name)
    assert scenario.name == name
    assert scenario.title
    assert len(points_of(scenario)) >= 1


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
points: [{model: nets/tiny.onnx}, {model: {model: nets/tiny.onnx, label: third}}]
"""
    (tmp_path / "paths.yaml").write_text(text)
    monkeypatch.chdir("/")
    scenario = read_scenario(tmp_path / "paths.yaml")
    whole = str(tmp_path / "nets" / "tiny.onnx")
    assert [model.model for model in scenario.models] == [whole, whole]
    assert [model.label for model in scenario.models] == ["tiny", "again"]
    assert scenario.devices[0].device == str(tmp_path / "board.yaml")
    assert [point.model.label for point in points_of(scenario)] == ["tiny", "third"]
    write_scenario(scenario, tmp_path / "resolved.yaml")
    assert read_scenario(tmp_path / "resolved.yaml") == scenario


def test_scenarios_that_are_mutated_are_read_or_refused_in_one_line(tmp_path: Path) -> None:
    """Lines dropped, doubled and exchanged, characters changed, words of the file put elsewhere."""
    stream = random.Random(6)
    words = [
        *VALID.split(),
        "{",
        "}",
        "[",
        "]",
        ":",
        "- ",
        "&a",
        "*a",
        "!!int",
        "null",
        "1e400",
        "é",
        "\x00",
        "'",
        '"',
        "%",
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
