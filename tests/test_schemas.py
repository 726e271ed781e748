"""JSON schemas: the committed ones are up to date, take what iossim takes and writes, and refuse what it refuses."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from command_line import printed, printed_json, refused
from jsonschema import Draft202012Validator
from random_networks import random_network, random_schedule

from iossim.cost.table import PriceTable
from iossim.hardware.load import device
from iossim.hardware.names import shipped_names
from iossim.hardware.write import profile_yaml, write_template
from iossim.ir.types import Precision
from iossim.measurements.formats.json_lines import to_json_lines
from iossim.measurements.measurement import Header, Measurement, MeasurementSet, StageMeasurement
from iossim.measurements.operator_kinds import KINDS, read_record
from iossim.microbatching.division import POLICIES
from iossim.microbatching.network_kernels import BACKWARD_DATA, BACKWARD_FILTER, FORWARD
from iossim.profiles.corun import Through
from iossim.report.schemas import SCHEMAS, schema

COMMITTED = Path(__file__).resolve().parents[1] / "docs" / "schemas"
PROFILES = Path(__file__).resolve().parents[1] / "hw_profiles"


def read_yaml(text: str) -> Any:
    """As ``yaml.safe_load``, ten times as fast where libyaml is."""
    return yaml.load(text, getattr(yaml, "CSafeLoader", yaml.SafeLoader))


def problems(name: str, document: Any) -> list[str]:
    return [error.message for error in Draft202012Validator(schema(name)).iter_errors(document)]


@pytest.mark.parametrize("name", SCHEMAS.names())
def test_the_committed_schema_is_what_the_classes_say(name: str) -> None:
    remedy = "run: iossim schema --out docs/schemas"
    assert (COMMITTED / f"{name}.json").read_text() == printed(f"schema {name}"), remedy
    Draft202012Validator.check_schema(schema(name))


def test_what_a_written_schema_lists_is_what_the_code_has() -> None:
    divided = schema("microbatch")["properties"]
    assert divided["policy"]["enum"] == list(POLICIES)
    passes = divided["kernels"]["items"]["properties"]["pass"]
    assert passes["enum"] == [FORWARD, BACKWARD_DATA, BACKWARD_FILTER]
    assert schema("corun")["$defs"]["slowed"]["properties"]["through"]["enum"] == [str(each) for each in Through]


def test_all_are_committed(tmp_path: Path) -> None:
    printed(f"schema --out {tmp_path}/new")
    written = {path.name: path.read_text() for path in (tmp_path / "new").iterdir()}
    assert written == {path.name: path.read_text() for path in COMMITTED.glob("*.json")}
    assert "did you mean 'profile'" in refused("schema profil")
    assert f"known: {', '.join(SCHEMAS.names())}" in refused("schema")


@pytest.mark.parametrize("name", shipped_names())
def test_profiles_that_ship_and_those_that_are_written_are_valid(name: str) -> None:
    assert problems("profile", read_yaml((PROFILES / f"{name}.yaml").read_text())) == []
    assert problems("profile", read_yaml(profile_yaml(device(name)))) == []


def test_a_template_is_named_fact_by_fact(tmp_path: Path) -> None:
    write_template("mine", tmp_path / "mine.yaml", tmp_path)
    found = problems("profile", yaml.safe_load((tmp_path / "mine.yaml").read_text()))
    assert len(found) == 9
    assert all("FILL_IN" in problem for problem in found)


def test_schedules_are_valid() -> None:
    assert problems("schedule", printed_json("optimize ios_sample --device t4 --json")) == []
    document = json.loads(random_schedule(random_network(5), 2).model_dump_json())
    assert problems("schedule", document) == []
    document["blocks"][0]["stages"][0]["strategy"] = "both"
    assert problems("schedule", document)
    assert problems("schedule", document | {"format_version": 99})


def test_tables_are_valid() -> None:
    table = {"stages": [{"units": ["a"], "latency_us": 1.5}], "boundary_us": {"single_to_concurrent": 2}}
    assert problems("table", table) == []
    assert problems("table", json.loads(PriceTable.model_validate_json(json.dumps(table)).model_dump_json())) == []
    assert problems("table", {"stages": [{"units": [], "latency_us": 1}]})
    assert problems("table", {"stages": [{"units": ["a"], "latency_us": -1}]})


def test_every_line_that_is_written_is_valid() -> None:
    """An operator of each kind, alone and in a stage."""
    records = [
        {"op": kind.name, **{column.name: "N" if column.is_transposition else 4 for column in kind.columns}}
        for kind in KINDS.values()
    ]
    for record in records:
        record |= {name: 1 for name in record if name.startswith(("kernel", "dilation", "groups"))}
        record |= {name: 0 for name in record if name.startswith("pad")}
    operators = [read_record(record, Precision.FP32) for record in records]
    measured = MeasurementSet(
        Header(device="t4", data_set="lab"),
        tuple(Measurement(operator, 3.5, row=0, kernels=("k",)) for operator in operators),
        (StageMeasurement((tuple(operators[:2]), tuple(operators[2:3])), 9.0, serial_us=12.0),),
    )
    lines = [json.loads(line) for line in to_json_lines(measured).splitlines()]
    assert len(lines) == len(KINDS) + 2
    for line in lines:
        assert problems("measurement", line) == []
    square = {"op": "conv2d", "batch": 1, "in_channels": 3, "out_channels": 8, "in_size": 9, "kernel": 3, "stride": 1}
    assert problems("measurement", {**square, "padding": 0, "latency_us": 2}) == []
