"""``iossim corun``: concurrent kernels on a device, and who slows whom through which resource."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from iossim.base.errors import OptionError
from iossim.cli.options import command
from iossim.cli.outputs import Part, TimelineOutputs, Writer, json_file, notes, pictures, present, text_file, wrapped

#: Number of rows of the table without ``--all``.
_ROWS_SHOWN = 40


@command
def corun(
    kernels: Path,
    device: str | None = None,
    graph: bool = True,
    sm_share: str | None = None,
    *,
    outputs: TimelineOutputs,
    as_json: bool = False,
    whole: bool = False,
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
