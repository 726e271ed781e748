"""A scenario to begin with: what was asked for, and a comment on all else that it can say."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from iossim.base.errors import ScenarioError
from iossim.base.user_files import user_data, write_atomically
from iossim.study.scenario import Scenario
from iossim.study.scenario_file import MODELINE, parse_scenario

_TEMPLATE = """\
{modeline}{schema}
# A study for iossim. What it will do:      iossim study show {file}
# Run it, with a report at the end:         iossim study run {file} --out {name}
name: {name}
title: {title}
# Why one would want to know; the report begins with it.
description: ""

# Every list is an axis; a point is one value of each, and by default all combinations are points.
# Networks of the zoo (iossim models list) or ONNX files, relative to this file. One with options is a mapping:
#   - {{model: inception_v3, block: mixed_7c}}                  # one block alone, by name or number (-1 is the last)
#   - {{model: my.onnx, dims: {{sequence: 128}}, label: "my model"}}
models:
{models}
# Devices (iossim devices list) or profile files. What is not sold, with facts, costs or parameters replaced:
#   - {{device: v100-sxm2, set: {{dram_gbps: 450}}}}         # also sms, clock_ghz, l2_mib, power_w, bare_launch_us ...
devices:
{devices}
batch_sizes: {batch_sizes}
# Of each point a schedule by each of these is found: sequential, greedy, ios-merge, ios-parallel, ios-both.
schedulers: {schedulers}
# How far the schedulers of IOS search: groups of at most max_group_size units, at most max_groups groups side by side.
# A search without limits is exact, and takes longer for wide networks.
searches:
  - {{max_group_size: 3, max_groups: 8}}
# dtypes: [fp32, fp16]
# engines: [paper, graph]             # streams with syncs between stages; one CUDA graph; partition: on divided SMs
# rewrites: [none, default]           # the graph as given; rewritten by rules (iossim rules list) for its schedule
# micro_batches: [1, auto]            # the batch whole; each block in as many micro-batches as are fastest
# workspace: [none, 64MiB]            # of all kernels that run at the same time, besides their tensors
# dataflow: [priority, exhaustive]    # of edge devices, which need it; {{devices: 4, sync: ring}}: several of them
# combine: zip                        # the first value of each list, the second of each ...; or list 'points'
# cross_evaluate: [batch]             # run the schedules of each batch size at all others: who specialises?
# measures: [active_warps, peak_memory, micro_batches]
# constraints: [{{metric: latency_ms, at_most: 10}}]    # rows that do not meet them are marked

# What the report answers first. More of them:
#   {{smallest: device, having: {{latency_ms: {{at_most: 5}}}}}}         # of the least board power; or by: peak_tflops
#   {{largest: batch, having: {{latency_ms: {{at_most: 10}}}}, for_each: [model, device]}}
#   {{metric: throughput_per_s, per: board_power_w}}                       # the row that is best by it
#   {{metric: latency_ms, of: sequential, over: ios-both}}                 # a figure over another, case by case
#   {{best: scheduler, expect: ios-both}}                                  # a claim: it holds, or in which cases not
#   {{metric: speedup, of: ios-both, at_least: 1.1, where: {{batch: 1}}}}    # another claim
questions:
{questions}
# Of random weights and graphs.
seed: 0
"""


@dataclass(frozen=True)
class Wishes:
    """What a new study is to be about."""

    name: str
    title: str
    models: Sequence[str]
    devices: Sequence[str]
    batch_sizes: Sequence[int]
    schedulers: Sequence[str]
    questions: Sequence[str]


def write_new_scenario(wishes: Wishes, path: Path, schema: Mapping[str, Any], replace: bool = False) -> Scenario:
    """Write a commented scenario, whole or not at all, and the JSON ``schema`` that its first line names for editors.

    Raises ScenarioError where the wishes make no scenario, or a file is there already and is not to be replaced.
    """
    if path.suffix not in (".yaml", ".yml"):
        raise ScenarioError(f"scenario {path}: the name must end in .yaml: 'iossim study run' takes it as a file then")
    if path.exists() and not replace:
        raise ScenarioError(f"scenario {path} is there already; choose another name, or give `force` to replace it")
    schema_path = user_data() / "schemas" / "scenario.json"
    text = scenario_template(wishes, path, schema_path)
    scenario = parse_scenario(text, path)
    try:
        schema_path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(schema_path, json.dumps(schema, indent=1, ensure_ascii=False) + "\n")
        write_atomically(path, text)
    except OSError as error:
        raise ScenarioError(f"cannot write scenario {path}: {error.strerror}; choose another file") from None
    return scenario


def scenario_template(wishes: Wishes, path: Path, schema_path: Path) -> str:
    """The text of a commented scenario."""
    return _TEMPLATE.format(
        modeline=MODELINE,
        schema=schema_path,
        file=path,
        name=wishes.name,
        title=_quoted(wishes.title),
        models=_items(wishes.models),
        devices=_items(wishes.devices),
        batch_sizes=list(wishes.batch_sizes),
        schedulers=f"[{', '.join(wishes.schedulers)}]",
        questions="\n".join(f"  - {question}" for question in wishes.questions) or "  []",
    )


def _items(values: Sequence[str]) -> str:
    return "\n".join(f"  - {_quoted(value)}" for value in values) or "  []"


def _quoted(text: str) -> str:
    """Text as YAML reads it back, plain where that is clear; JSON strings are YAML."""
    is_plain = text.replace("-", "").replace("_", "").replace(".", "").isalnum() and not text[:1].isdigit()
    is_word = text.lower() not in ("on", "off", "yes", "no", "true", "false", "null", "y", "n")
    return text if is_plain and is_word else json.dumps(text)
