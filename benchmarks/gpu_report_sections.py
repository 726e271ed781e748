"""Sections of ``gpu_report.py``: each runs in its own process, with iossim and the wheels importable.

A section works until its time is over, stores every result at once, and returns 0 only if all of it is done:
``PARTIAL`` if items failed, which are records with their error, or remain. Any other exception ends only this section;
so does an error from which the device does not recover.
"""

from __future__ import annotations

import argparse
import time
import traceback
from collections.abc import Callable
from dataclasses import asdict
from itertools import product
from typing import Any

from gpu_report_baselines import AUTOTUNED, COMPILED, section_baselines, section_compile
from gpu_report_company import section_company
from gpu_report_costs import section_costs
from gpu_report_first import section_first
from gpu_report_job import ENGINES, Job, estimate_device, one_line
from gpu_report_modules import section_modules
from gpu_report_networks import section_graph, section_network, section_warm_up
from gpu_report_plan import kind_of, model_and_dtype
from gpu_report_process import FAILED, PARTIAL
from gpu_report_profile import measurement_file, section_profile
from gpu_report_tests import section_tests

#: Part of a section's time reserved for its end.
RESERVE_S = 3.0


def run(args: argparse.Namespace) -> int:
    """Run the section that the arguments name; returns its exit code. The last printed line explains a nonzero one."""
    end_s = time.monotonic() + args.seconds - RESERVE_S
    model, dtype = model_and_dtype(args.section)
    dtypes = tuple(args.dtypes)
    job = Job(args.section, args.out, end_s, tuple(args.models), args.backend, args.device, args.dry_run, dtype, dtypes)
    sections: dict[str, Callable[[], None]] = {
        "first": lambda: section_first(job),
        "costs": lambda: section_costs(job),
        "graph": lambda: section_graph(job, model),
        "profile": lambda: section_profile(job),
        "baselines": lambda: section_baselines(job),
        "tests": lambda: section_tests(job),
        "warm-up": lambda: section_warm_up(job),
        "networks": lambda: section_network(job, model),
        "company": lambda: section_company(job, model),
        "compile": lambda: section_compile(job, model, COMPILED),
        "modules": lambda: section_modules(job),
        "autotune": lambda: section_compile(job, model, AUTOTUNED),
        "prediction": lambda: section_prediction(job),
    }
    before = _clocks()
    try:
        sections[kind_of(args.section)]()
        code, remark = (PARTIAL, job.remark) if job.remark else (0, "")
    except Exception as error:  # the report records whatever error ends a section
        traceback.print_exc()
        code, remark = FAILED, one_line(error)
        job.record("error", section=job.section, item="the section", error=remark)
    job.record_counts()
    job.record("spent", section=job.section, s=job.spent_s)
    if clocks := [*before, *_clocks()]:
        job.record("clocks", section=args.section, before_and_after=clocks)
    print(remark, flush=True)
    return code


def section_prediction(job: Job) -> None:
    """Errors of the simulator, over all warm measurements with correct outputs."""
    from iossim.calibration.evaluated_networks import evaluate_measured_networks
    from iossim.calibration.validation import evaluate_operators
    from iossim.hardware.load import device
    from iossim.measurements.measured_networks import read_measured_networks
    from iossim.measurements.measurement_set import read_measurements

    path = job.out / "networks.jsonl"
    if path.is_file():
        with job.told("prediction of networks"):
            measured = read_measured_networks(path)
            name = estimate_device(job, measured.header.device)
            found = evaluate_measured_networks(measured, device(name))
            gains = [
                {"model": each.run.model, "engine": each.run.engine, "name": each.run.name}
                | {"error": each.error, "speedup": each.speedup, "measured_speedup": each.measured_speedup}
                for each in found.latencies
                if each.predicted_us is not None
            ]
            left_out = list(found.notes)
            job.record(
                "prediction", of="networks", device=name, **found.accuracy.to_json(), runs=gains, left_out=left_out
            )
    for engine, dtype in product(ENGINES, job.dtypes):
        path = measurement_file(job.out, engine, dtype)
        if path.is_file():
            with job.told(f"prediction of operators, {engine} engine, {dtype}"):
                operators = read_measurements(path)
                name = estimate_device(job, operators.device)
                whole = evaluate_operators(operators, device(name))
                accuracy = whole.gpu_time().to_json()
                job.record("prediction", of=f"operators, {engine} engine, {dtype}", device=name, **accuracy)


def _clocks() -> list[dict[str, Any]]:
    from iossim.hardware.nvidia_smi import gpus

    return [asdict(gpu) for gpu in gpus()]
