"""The section of ``gpu_report.py`` that runs stages with kernels chosen for their company, beside those of the fastest.

The schedule is the simulator's, with the kernels that the backend offers (``OffersVariants``), each priced as the most
alike of its own: nothing is measured to find it but the time of each kernel alone. Then it is run, beside the same
stages with the fastest kernels, and each stage whose kernels were chosen is measured both ways.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gpu_report_job import Job, estimate_device, load_network
from gpu_report_networks import checked_runs
from gpu_report_profile import measuring

if TYPE_CHECKING:
    from iossim.schedule.schedule import Schedule


def section_company(job: Job, model: str) -> None:
    """Run a network's schedule of chosen kernels on the graph engine, and record each of its stages (``company``)."""
    from iossim.api import cost_model, optimize, search_options
    from iossim.cost.capabilities import VariantCostModel
    from iossim.cost.measured.store import MeasurementStore
    from iossim.execution.backend import OffersVariants
    from iossim.schedule.fit import with_variants
    from iossim.search.assemble import reprice
    from iossim.search.measured.company import NamedAlike

    network = load_network(job, model)
    if not isinstance(backend := job.backend_of("graph"), OffersVariants):
        job.skip(f"company of {model}", f"{backend.context.backend} knows one kernel of each unit")
        return
    with MeasurementStore(job.out / "measurements.sqlite") as store:
        prices = measuring(job, "graph", store)
        device = estimate_device(job, prices.context.device)
        simulator = cost_model("simulator:in-place", device, network.precision, "graph")
        assert isinstance(simulator, VariantCostModel)
        estimates = NamedAlike(simulator, prices)
        with job.timed(f"kernels of {model}"):
            chosen = optimize(
                network, None, cost_model=estimates, options=search_options("general", 3, 8, company=True)
            )
        both = {"company": chosen, "company-fastest": with_variants(chosen)}
        taken = checked_runs(job, model, network, backend, both)
        measured, predicted = ([reprice(found, network, by) for found in both.values()] for by in (prices, estimates))
        rows = _rows(chosen, measured, predicted)
        whole_us = {name: samples.median_us for name, samples in taken.items()}
        several = sum(stage.concurrent for stage in chosen.stages)
        predicted_us = dict(zip(both, (found.latency_us for found in predicted), strict=True))
        job.record(
            "company", model=model, dtype=job.dtype, device=device, concurrent_stages=several, predicted_us=predicted_us,
            measured_us=whole_us, stages=rows,
        )  # fmt: skip


def _rows(chosen: Schedule, measured: list[Schedule], predicted: list[Schedule]) -> list[dict[str, Any]]:
    """Each stage whose kernels were chosen: its time with them, and with the fastest, measured and predicted."""
    rows = []
    columns = zip(*(found.stages for found in (chosen, *measured, *predicted)), strict=True)
    for stage, *times in columns:
        if stage.variants:
            company_us, fastest_us, predicted_us, predicted_fastest_us = (each.latency_us for each in times)
            rows.append(
                {"groups": stage.groups, "variants": stage.variants, "company_us": company_us, "fastest_us": fastest_us}
                | {"predicted_company_us": predicted_us, "predicted_fastest_us": predicted_fastest_us}
            )
    return rows
