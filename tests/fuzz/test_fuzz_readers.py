"""No device file, schedule, table or measurement set shows a traceback: its command works, or says in one line what is wrong."""

import gzip
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from random import Random
from typing import Any

import pytest
from fuzz_mutations import flip_bits, truncate
from fuzz_runner import Outcome, Runner, Tally
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import iossim
from iossim.api import cost_model
from iossim.cli.main import main
from iossim.cost.table import PriceTable, StagePrice
from iossim.ir.types import Precision
from iossim.measurements.measurement import Header, Measurement, MeasurementSet
from iossim.measurements.measurement_set import write_measurements
from iossim.measurements.operator_kinds import read_record
from iossim.search.scheduler import schedule

#: Values that may replace another.
VALUES: tuple[Any, ...] = (
    None, True, "", "x", "1.5 GHz", "NaN", -1, 0, 1, 2**31, 2**63, 10**30, 0.0, -0.5, 1e308, 1e-308, 1e999, [], [[]], {}, {"": 0},
    ["a", "a"], "n" * 10_000, "../../etc/passwd", "\u0000", "line\nbreak", float("nan"), float("-inf"),
)  # fmt: skip
#: Pieces of YAML and JSON, and of neither.
PIECES = (
    "\t", "\n", ":", ": ", "- ", "{", "}", "[", "]", "&a ", "*a", "<<: *a", "!!python/object/apply:os.system [id]", "!!binary x",
    "2020-13-45", "1:99:99", "0x", "1_000", "~", "'", '"', "#", "? ", "|", ">", "%YAML 9.9", "---", "\u2028", "\ufeff", "9" * 5000,
    "NaN", "Infinity", "\\ud800", "[" * 5000, "{a: " * 3000,
)  # fmt: skip


def mutated(text: bytes, name: str, seed: int) -> bytes:
    """A file after one mutation; what is no JSON is mutated by its letters."""
    return MUTATIONS[name](text, Random(seed)) if text else text


def insert_piece(text: bytes, choose: Random) -> bytes:
    place = choose.randrange(len(text) + 1)
    return text[:place] + choose.choice(PIECES).encode(errors="surrogatepass") + text[place:]


def change_lines(text: bytes, choose: Random) -> bytes:
    """A line left out, twice, elsewhere, or indented otherwise."""
    lines = text.splitlines(keepends=True)
    place, other = choose.randrange(len(lines)), choose.randrange(len(lines))
    match choose.randrange(4):
        case 0:
            del lines[place]
        case 1:
            lines.insert(other, lines[place])
        case 2:
            lines[place], lines[other] = lines[other], lines[place]
        case _:
            lines[place] = choose.choice((b" ", b"\t", b"   ")) + lines[place]
    return b"".join(lines)


def change_number(text: bytes, choose: Random) -> bytes:
    """A run of digits as another number."""
    starts = [index for index, letter in enumerate(text) if chr(letter).isdigit()]
    if not starts:
        return text
    start = end = choose.choice(starts)
    while end < len(text) and chr(text[end]).isdigit():
        end += 1
    return text[:start] + str(choose.choice(VALUES)).encode(errors="replace") + text[end:]


def change_value(text: bytes, choose: Random) -> bytes:
    """A value of a JSON document, or of one of its lines, replaced, left out or given another key."""
    lines = text.splitlines()
    one_each = len(lines) > 1 and all(line.startswith(b"{") and line.endswith(b"}") for line in lines[:3])
    place = choose.randrange(len(lines)) if one_each else 0
    try:
        document = json.loads(lines[place] if one_each else text)
    except (ValueError, RecursionError):  # an earlier mutation may nest deeply
        return insert_piece(text, choose)
    holders = [each for each in _holders(document) if len(each)]
    if not holders:
        return text
    holder = choose.choice(holders)
    key = choose.choice(list(holder) if isinstance(holder, dict) else range(len(holder)))
    match choose.randrange(4):
        case 0:
            del holder[key]
        case 1 if isinstance(holder, dict):
            holder[choose.choice(("extra", "", "latency_us", "blocks"))] = holder.pop(key)
        case _:
            holder[key] = choose.choice(VALUES)
    changed = json.dumps(document).encode()
    return b"\n".join([*lines[:place], changed, *lines[place + 1 :]]) + b"\n" if one_each else changed


def _holders(value: Any) -> Iterator[Any]:
    if isinstance(value, dict | list):
        yield value
        for each in value.values() if isinstance(value, dict) else value:
            yield from _holders(each)


MUTATIONS: dict[str, Callable[[bytes, Random], bytes]] = {
    function.__name__: function
    for function in (truncate, flip_bits, insert_piece, change_lines, change_number, change_value)
}


def yaml_bombs(profile: str) -> dict[str, tuple[str, str]]:
    """Profiles that no reader should choke on: the text, and what is said of it."""
    doubled = "a0: &a0 {k: 1}\n" + "".join(
        f"a{level}: &a{level} {{<<: [{', '.join([f'*a{level - 1}'] * 9)}]}}\n" for level in range(1, 10)
    )
    laughs = "a0: &a0 [x]\n" + "".join(
        f"a{level}: &a{level} [{', '.join([f'*a{level - 1}'] * 9)}]\n" for level in range(1, 30)
    )
    count = "sm_count: {value: 40, source: datasheet}"
    assert count in profile
    return {
        "merged mappings": (doubled + profile, "anchors and aliases"),
        "aliases": (laughs + profile, "anchors and aliases"),
        "deep lists": (profile + "x: " + "[" * 100_000, "nested more than"),
        "deep mappings": (profile + "x: " + "{a: " * 50_000, "nested more than"),
        "key twice": (f"{profile}\nname: other\n", "given twice"),
        "field twice": (profile.replace(count, f"{count}\n  {count}"), "given twice"),
        "tabs": (profile.replace("  sm_count", "\tsm_count"), "is not YAML"),
        "digits": (profile.replace("value: 40", f"value: {'9' * 10_000}"), "cannot be read"),
        "month thirteen": (profile.replace("value: 40", "value: 2020-13-01"), "cannot be read"),
        "code": (profile.replace("value: 40", "value: !!python/object/apply:os.system [id]"), "sm_count"),
        "not a number": (profile.replace("value: 40", "value: .nan"), "datasheet.sm_count.value"),
        "infinite": (profile.replace("value: 40", "value: .inf"), "datasheet.sm_count.value"),
        "unit in the value": (profile.replace("value: 40", "value: 40 SMs"), "datasheet.sm_count.value"),
        "quoted number": (profile.replace("value: 40", 'value: "40"'), "datasheet.sm_count.value"),
        "two documents": (f"{profile}\n---\n{profile}", "document"),
        "too long": ("#" * (1 << 21) + "\n" + profile, "characters"),
        "only a comment": ("# nothing\n", "not a mapping"),
    }


PROFILE = Path(str(resources.files("iossim.hw_profiles") / "t4.yaml"))


@dataclass(frozen=True)
class Reader:
    """A file that commands read, and the commands."""

    file: str
    contents: bytes
    commands: tuple[str, ...]


@pytest.fixture(scope="module")
def readers(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Reader]:
    """Real files, as iossim ships or writes them."""
    folder = tmp_path_factory.mktemp("written")
    network = iossim.load("ios_sample")
    found = schedule(network, cost_model("simulator", "t4"), "sequential")
    found.save(folder / "schedule.json")
    stages = [StagePrice(units=stage.units, latency_us=stage.latency_us) for stage in found.stages]
    (folder / "prices.json").write_text(PriceTable(stages=stages).model_dump_json(indent=1))
    exported = ["schedules", "export", str(folder / "schedule.json"), "--out", str(folder / "ios.json")]
    assert main(exported) == 0
    rows = []
    for index in range(12):
        record = {"op": "relu", "rows": 8 << index % 6, "cols": 64 + index}
        rows.append(Measurement(read_record(record, Precision.FP32), 4.0 + index))
    measured = MeasurementSet(Header(device="t4", data_set="made"), tuple(rows))
    write_measurements(measured, folder / "set.jsonl")
    table = [f"{8 << index % 6},{64 + index},{4.0 + index}" for index in range(12)]
    (folder / "relu.t4.csv").write_text("\n".join(["rows,cols,latency_us", *table, ""]))
    calibrate = "calibrate -d t4 --folds 0 --json --out made.yaml --data"
    given = {
        "profile": (PROFILE, "mine.yaml", ("devices validate mine.yaml", "optimize ios_sample --scheduler sequential -d mine.yaml")),
        "schedule": (folder / "schedule.json", "schedule.json", ("simulate schedule.json", "check ios_sample -d t4 --baseline schedule.json")),
        "ios": (folder / "ios.json", "ios.json", ("schedules import ios.json", "models show ios.json")),
        "table": (folder / "prices.json", "prices.json", ("optimize ios_sample --scheduler sequential --cost-model table:prices.json",)),
        "lines": (folder / "set.jsonl", "set.jsonl", (f"{calibrate} set.jsonl",)),
        "csv": (folder / "relu.t4.csv", "relu.t4.csv", (f"{calibrate} relu.t4.csv",)),
    }  # fmt: skip
    return {name: Reader(file, path.read_bytes(), commands) for name, (path, file, commands) in given.items()}


def run(runner: Runner, file: str, contents: bytes, words: str) -> Outcome:
    (runner.folder / file).write_bytes(contents)
    try:
        return runner.run(json.dumps(words.split()).encode(), "arguments.json")
    finally:
        (runner.folder / file).unlink()


KINDS = ("profile", "schedule", "ios", "table", "lines", "csv")
STEPS = st.lists(st.tuples(st.sampled_from(sorted(MUTATIONS)), st.integers(0, 2**32 - 1)), min_size=1, max_size=3)


@pytest.mark.parametrize("kind", KINDS)
def test_files_as_they_are(kind: str, readers: dict[str, Reader], command: Runner) -> None:
    """Else their mutants would all be refused for the same reason."""
    reader = readers[kind]
    for words in reader.commands:
        outcome = run(command, reader.file, reader.contents, words)
        assert outcome.verdict == ("refused" if words.startswith("calibrate") else "imported"), outcome


@settings(max_examples=20, suppress_health_check=list(HealthCheck))
@given(st.sampled_from(KINDS), STEPS, st.integers(0, 1))
def test_mutants(
    readers: dict[str, Reader], command: Runner, kind: str, steps: list[tuple[str, int]], which: int
) -> None:
    reader = readers[kind]
    contents = reader.contents
    for name, seed in steps:
        contents = mutated(contents, name, seed)
    outcome = run(command, reader.file, contents, reader.commands[which % len(reader.commands)])
    assert outcome.is_fine, outcome


BOMBS = yaml_bombs(PROFILE.read_text())


@pytest.mark.parametrize("name", BOMBS)
def test_profiles_made_to_hurt(name: str, command: Runner) -> None:
    text, says = BOMBS[name]
    outcome = run(command, "mine.yaml", text.encode(), "devices show mine.yaml")
    assert outcome.verdict == "refused", outcome
    assert "mine.yaml" in outcome.line
    assert says in outcome.line
    assert outcome.grown_bytes < 256 << 20


DEEP, DIGITS = b"[" * 100_000, b"9" * 10_000


@pytest.mark.parametrize(
    "contents", [DEEP, b'{"a":' * 50_000, DIGITS, b'{"format_version": ' + DIGITS + b"}", b'"\\ud800"', b"\xff\xfe{}"]
)
@pytest.mark.parametrize("kind", ["schedule", "ios", "table", "lines"])
def test_json_made_to_hurt(kind: str, contents: bytes, readers: dict[str, Reader], command: Runner) -> None:
    reader = readers[kind]
    outcome = run(command, reader.file, contents, reader.commands[0])
    assert outcome.verdict == "refused", outcome
    assert reader.file in outcome.line


def test_lines_made_to_hurt(readers: dict[str, Reader], command: Runner) -> None:
    """A line that nests for ever is left out as any other that is no record; a header is needed."""
    reader = readers["lines"]
    lines = reader.contents.splitlines(keepends=True)
    for place in (0, 1):
        contents = b"".join([*lines[:place], b'{"op": ' + DEEP + b"\n", *lines[place + 1 :]])
        assert run(command, reader.file, contents, reader.commands[0]).verdict == "refused"


@pytest.mark.slow
def test_zipped_measurements_that_unzip_to_gigabytes(command: Runner) -> None:
    outcome = run(command, "set.csv", gzip.compress(bytes(513 << 20), 1), "calibrate -d t4 --data set.csv")
    assert outcome.verdict == "refused", outcome
    assert "set.csv: holds more than 512 MiB; split the file" in outcome.line


@pytest.mark.slow
def test_hundreds_of_mutants(readers: dict[str, Reader], command: Runner) -> None:
    tally = Tally()
    for index in range(200):
        choose = Random(index)
        reader = readers[KINDS[index % len(KINDS)]]
        contents = reader.contents
        for _ in range(choose.choice((1, 1, 2, 3))):
            contents = mutated(contents, choose.choice(sorted(MUTATIONS)), choose.randrange(2**32))
        outcome = run(command, reader.file, contents, choose.choice(reader.commands))
        assert outcome.is_fine, (index, outcome)
        tally.add(outcome)
    assert min(tally.verdicts["imported"], tally.verdicts["refused"]) > 4
    assert tally.grown_bytes < 1 << 30
