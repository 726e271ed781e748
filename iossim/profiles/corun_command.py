"""``iossim corun``: concurrent kernels on a device, and who slows whom through which resource."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import typer

from iossim.base.errors import OptionError
from iossim.cli import options
from iossim.cli.options import argument, option, switch, takes_options
from iossim.cli.outputs import Part, TimelineOutputs, Writer, json_file, notes, pictures, present, text_file, wrapped

#: Number of rows of the table without ``--all``.
_ROWS_SHOWN = 40

Kernels = Annotated[
    Path,
    argument(
        "KERNELS.csv",
        "A table with a row for each kernel, those of a stream in order: stream, name, blocks, threads, "
        "registers_per_thread, shared_bytes, and what the kernel takes or asks for: alone_us, dram_bytes, l2_bytes, "
        "footprint_bytes, flops, pipe (fp32, fp64, tensor, int); or op with the columns of 'iossim predict'. "
        "Or a recording: CSV of Nsight Systems (cuda_gpu_trace) or Nsight Compute (raw), trace.json of the PyTorch "
        "profiler.",
    ),
]
Graph = Annotated[
    bool,
    switch(
        "--graph/--streams", "Submit all kernels in one CUDA graph (default), or launch them from the host row by row."
    ),
]
Shares = Annotated[
    str | None,
    option(
        "--sm-share", "50,50", "Percentage of the SMs reserved for each stream, in stream order (MPS, green contexts)."
    ),
]
Whole = Annotated[bool, switch("--all", "Show every kernel, not only those that lose most time.")]


def register(app: typer.Typer) -> None:
    app.command("corun", help="Run kernels concurrently: how long each takes, and which slows which.")(corun)


@options.shown(options.PREDICT, "corun kernels.csv -d v100-pcie-32gb")
@takes_options
def corun(
    kernels: Kernels,
    device: options.Device = None,
    graph: Graph = True,
    sm_share: Shares = None,
    *,
    outputs: TimelineOutputs,
    as_json: options.Json = False,
    whole: Whole = False,
) -> None:
    """Run kernels concurrently, block by block, on the event-driven simulator.

    For each kernel the table shows when it ran, its slowdown over its time alone since its stream had reached it, and
    the cause of the loss: slots (no room on the SMs), issue, pipe (of arithmetic), L2, DRAM, power. Rows are counted
    from 0.
    """
    from iossim.execution.engine import Engine
    from iossim.profiles import corun_report as told
    from iossim.profiles.corun import corun as run_corun

    outputs.check_files()
    shares = None if sm_share is None else _shares(sm_share)
    run = run_corun(kernels, device, engine=Engine.GRAPH if graph else Engine.PAPER, sm_share=shares)
    how = "one CUDA graph" if graph else "streams, launched by the host"
    if shares is not None:
        how += f", SMs {sm_share}%"
    title = f"{kernels.name} on {run.device}, {how}"

    def parts() -> Iterator[Part]:
        yield wrapped(title, "bold")
        yield told.corun_table(run, None if whole else _ROWS_SHOWN)
        yield told.lanes(run)
        yield from map(wrapped, told.corun_lines(run))
        if len(run.kernels) > _ROWS_SHOWN and not whole:
            cut = f"the {_ROWS_SHOWN} of {len(run.kernels)} kernels that lost most time are shown (--all shows all)"
            yield from notes([cut])
        yield from notes([*run.notes, *told.inferred_words(run)])

    def files() -> dict[str, Writer]:
        made = {"corun.json": json_file(run.to_json()), "kernels.csv": text_file(told.corun_csv(run))}
        if outputs.trace is not False:
            made["trace.json"] = text_file(told.corun_trace(run, title))
        return made | (pictures(told.corun_figure(run, title)) if outputs.draws else {})

    present(run.to_json, parts(), as_json, out=outputs.out, files=files)


def _shares(text: str) -> list[float]:
    """``50,50`` as percentages; raises OptionError for anything but numbers."""
    try:
        return [float(part) for part in text.split(",")]
    except ValueError:
        raise OptionError(f"--sm-share {text!r} is not a percentage for each stream; give 50,50, say") from None
