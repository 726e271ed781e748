"""Files of scenarios: what is read back, and every mistake as one line with file, line, field and remedy."""

import random
from pathlib import Path

import pytest
import yaml
from case_files import cases

from iossim.base.errors import IossimError, ScenarioError
from iossim.base.located_yaml import LocatedYamlError, read_located
from iossim.study.points import points_of
from iossim.study.scenario import Scenario
from iossim.study.scenario_file import MODELINE, parse_scenario, read_scenario, scenario_names, write_scenario

FOLDER = Path(__file__).parent
VALID = (FOLDER / "whole.yaml").read_text(encoding="utf-8")
MISTAKES = cases(__file__, "mistakes.yaml")


def changed(changes: dict[str, str]) -> str:
    """The valid scenario with other text where each key stands."""
    text = VALID
    for old, new in changes.items():
        assert text.count(old) == 1, old
        text = text.replace(old, new)
    return text


#: As the list of mistakes has them, of texts that are too long for it.
LONG = [
    [f"name: {'[' * 5000}", 1, "", "nested more than 20 deep", "close one"],
    [
        {"[1, 8]": str(list(range(1, 3001))), "[fp32]": "[fp32, tf32, fp16, bf16, int8]", "[paper]": "[paper, graph]"},
        *(1, "", "120,000 points", "shorten the lists"),
    ],
]


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


@pytest.mark.parametrize(
    ("text", "line", "field", "words"), [(*case[:3], case[3:]) for case in (*MISTAKES["whole"], *LONG)]
)
def test_a_mistake_is_one_line_with_file_line_field_and_remedy(
    text: str | dict[str, str], line: int, field: str, words: list[str], tmp_path: Path
) -> None:
    path = tmp_path / "study.yaml"
    path.write_text(text if isinstance(text, str) else changed(text))
    with pytest.raises(ScenarioError) as caught:
        read_scenario(path)
    told, place = str(caught.value), f"scenario {path}, line {line}{f', field {field}' if field else ''}"
    assert "\n" not in told
    assert told.startswith((f"{place}:", f"{place}."))
    assert [word for word in words if word not in told] == [], told


@pytest.mark.parametrize(
    ("device", "lines", "reason"),
    [(device, *case) for device, key in (("t4", "gpu"), ("c6678", "edge")) for case in MISTAKES[key]],
)
def test_a_mistake_on_an_axis_is_named(device: str, lines: str, reason: str, tmp_path: Path) -> None:
    told = refusal(f"name: w\nmodels: [squeezenet]\ndevices: [{device}]\n{lines}\n", tmp_path / "w.yaml")
    assert reason in str(told)


def test_all_that_is_wrong_is_counted_and_the_first_is_told(tmp_path: Path) -> None:
    text = changed({"  - t4": "  - t5", "[fp32]": "[fp31]", "[paper]": "[ink]"})
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
