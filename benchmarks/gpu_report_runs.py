"""Runs of whole networks as ``gpu_report.py`` stores them in ``networks.jsonl``, and their reference outputs."""

from __future__ import annotations

import os
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from gpu_report_job import Job

if TYPE_CHECKING:
    from iossim.execution.backend import Context, Samples, Timing
    from iossim.execution.measured_run import Reference
    from iossim.ir.network import Network
    from iossim.measurements.measured_networks import NetworkRun
    from iossim.schedule.schedule import Schedule

SOURCE = "benchmarks/gpu_report.py"


def keep_run(
    job: Job,
    context: Context,
    model: str,
    network: Network,
    name: str,
    samples: Samples,
    schedule: Schedule | None,
    **facts: Any,
) -> NetworkRun:
    """Add a run to ``networks.jsonl``, which begins with a header; returns it."""
    from iossim.execution.measured_run import tolerance
    from iossim.measurements.measured_networks import NetworkHeader, NetworkRun, header_line, run_line

    run = NetworkRun.of(
        samples,
        model=model,
        batch=network.source.batch,
        dtype=str(network.precision),
        engine=context.engine if schedule is not None else "",
        backend=context.backend,
        name=name,
        schedule=schedule,
        libraries=dict(context.libraries),
        options={**dict(context.options), "layout": context.layout},
        most=tolerance(network),
        **facts,
    )
    header = NetworkHeader(
        device=context.device, driver=context.driver, date=datetime.now(UTC).date().isoformat(), source=SOURCE
    )
    with (job.out / "networks.jsonl").open("a", encoding="utf-8") as stream:
        if stream.tell() == 0:
            stream.write(header_line(header))
        stream.write(run_line(run))
        stream.flush()
        os.fsync(stream.fileno())
    print(f"{model} {context.engine} {name}: {samples.median_us / 1e3:.3f} ms", flush=True)
    return run


def kept_reference(job: Job, reference: Reference) -> Reference:
    """``reference`` with the results of earlier sections."""
    from gpu_report_references import kept_outputs

    return kept_outputs(reference, job.out / "references")


def timing_of_networks(job: Job) -> Timing:
    """Timing of whole networks."""
    from iossim.execution.backend import Timing

    return Timing(job.settings.rounds, 1 if job.dry else 5)
