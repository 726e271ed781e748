"""A small run of each command, with the files that they read."""

from __future__ import annotations

from pathlib import Path

import pytest

from iossim.cli.main import main

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
CPU = EXAMPLES / "cpu.yaml"
FAKE = "ios_sample --backend fake --rounds 3 --warm-up 0"
DATA = '{"schema": "iossim-measurements", "version": 1, "data_set": "lab", "device": "t4"}\n' + "".join(
    f'{{"op": "relu", "rows": {rows}, "cols": 64, "latency_us": {3 + rows / 1000}}}\n' for rows in range(100, 1000, 30)
)
RULE = 'rule: {0}-commutes\nsource: ["z = {0}(x, y)"]\ntarget: ["w = {0}(y, x)"]\noutputs: {{z: w}}\n'
STUDY = """
name: tiny
title: Tiny
models: [ios_sample]
devices: [t4, l4]
schedulers: [sequential, greedy]
questions: [{best: scheduler, for_each: [device]}]
"""
#: Commands by schema, with the arguments of a small run.
RUNS = [
    ("bench", f"bench {FAKE} --device t4 --budget 30 --store b.sqlite"),
    ("calibrate", "calibrate data.jsonl --device t4 --folds 0 --out fitted.yaml"),
    ("check", "check ios_sample -d t4 --max-latency-ms 5"),
    ("compare", "compare ios_sample -d t4 --schedulers sequential,ios-both,ios-streams"),
    ("compare", "compare squeezenet -d t4 --rewrite default --schedulers sequential,greedy"),
    ("compare", "compare ios_sample -d t4,l4"),
    ("coschedule", "coschedule ios_sample ios_sample -d t4"),
    ("corun", f"corun {EXAMPLES}/corun/v100_sleep.csv -d v100"),
    ("dataflow-explain", "dataflow explain ios_sample -d c6678"),
    ("dataflow-optimize", "dataflow optimize ios_sample -d c6678"),
    ("dataflow-run", "dataflow run ios_sample -d c6678"),
    ("deploy", "deploy ios_sample --runtime tensorrt -d t4"),
    ("deploy", f"deploy ios_sample -d {CPU} --rounds 1 --out deployed"),
    ("devices-derive", "devices derive mine --like t4 --out mine.yaml"),
    ("devices-list", "devices list"),
    ("devices-validate", "devices validate t4"),
    ("diff", "diff stages.json greedy.json"),
    ("diff", "diff stages.json streams.json"),
    ("doctor", "doctor ios_sample"),
    ("explain", "explain stages.json"),
    ("explain", "explain streams.json"),
    ("measurements-export", "measurements export out.jsonl --store s.sqlite"),
    ("measurements-import", "measurements import s.sqlite --store new.sqlite"),
    ("measurements-list", "measurements list --store s.sqlite"),
    ("measurements-list", "measurements list --store s.sqlite --records"),
    ("measurements-prune", "measurements prune --store s.sqlite --kind unit"),
    ("microbatch", "microbatch alexnet -d t4 --batch 16 --workspace 8MiB"),
    ("models-list", "models list"),
    ("models-show", "models show squeezenet"),
    ("predict", "predict ios_sample -d t4"),
    ("predict", f"predict {EXAMPLES}/ops.csv -d t4"),
    ("profile", "devices show t4"),
    ("profile-report", f"profile-report squeezenet {EXAMPLES}/squeezenet.profile.json -d {CPU}"),
    ("profiling", f"profile {FAKE} --store p.sqlite"),
    ("rule", "rules show simplify"),
    ("rules-list", "rules list"),
    ("rules-verify", "rules verify rules.yaml"),
    ("run", "run stages.json --backend numpy_reference --rounds 1"),
    ("schedule", "optimize ios_sample -d t4"),
    ("schedule", "schedules import exported.json -d t4"),
    ("schedule", "simulate stages.json"),
    ("schedule", "simulate streams.json"),
    ("search-space", "search-space ios_sample"),
    ("study-list", "study list"),
    ("study-run", "study run tiny.yaml --workers 1 --no-report --out ran"),
    ("study-show", "study show tiny.yaml"),
    ("validate", "validate --data data.jsonl"),
]


def write_files(folder: Path) -> None:
    """Write the schedules, tables and studies that the runs read."""
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        (folder / "data.jsonl").write_text(DATA)
        (folder / "rules.yaml").write_text("---\n".join(map(RULE.format, ("add", "mul"))))
        for name, scheduler in (("stages", "ios-both"), ("greedy", "greedy"), ("streams", "ios-streams")):
            assert main(f"optimize ios_sample -d t4 --scheduler {scheduler} --no-plot --out {name}".split()) == 0
            (folder / name / "schedule.json").rename(f"{name}.json")
        assert main(["schedules", "export", "greedy.json", "--out", "exported.json"]) == 0
        (folder / "tiny.yaml").write_text(STUDY)
