"""``python -m evidence figures``, ``pictures`` and ``predictions``: what is computed and written into the repository.

The figures that documents quote are computed, stored, and written into the documents; the pictures are those of
docs/how_it_works.md; the checked-in table of predictions is recomputed, and what moved is printed.
"""

from __future__ import annotations

from pathlib import Path

import typer

from iossim.cli.options import command
from iossim.cli.progress import progress_bars

FOLDER = Path(__file__).resolve().parents[2] / "docs" / "how_it_works"


@command
def figures(section: list[str] | None = None) -> None:
    """Compute these sections, store them in figures.json, and write all tables and sentences between markers in
    documents.

    Without a section the documents are written from the stored figures. The data is found as by 'validate'.
    """
    from evidence.quoted.blocks import read_results, write_documents, write_results
    from evidence.quoted.sections import SECTIONS, compute
    from iossim.base.errors import OptionError, did_you_mean

    names = list(SECTIONS) if section == ["all"] else section or []
    for name in names:
        if name not in SECTIONS:
            raise OptionError(f"no section of figures is called {name!r}; {did_you_mean(name, SECTIONS)}")
    with progress_bars(quiet=False, unit="") as start:
        for name in names:
            found = compute(name, start)  # takes minutes, in which another command may have stored another section
            write_results({**read_results(), name: found})
    for document in write_documents(read_results()):
        typer.echo(f"wrote {document}", err=True)


@command
def draw_pictures() -> None:
    """Draw the sample network of the IOS thesis on a V100 under the paper's engine, and store the pictures."""
    from iossim.base.user_files import write_atomically

    FOLDER.mkdir(exist_ok=True)
    for name, svg in drawn().items():
        write_atomically(FOLDER / name, svg)
        typer.echo(f"wrote {FOLDER / name}", err=True)


def drawn() -> dict[str, str]:
    """The pictures by file name; the same text each time."""
    from evidence.guide.drawing import ops_to_units, states_and_stages, units_to_blocks
    from evidence.guide.runs import blocks_on_sms, kernel_sizes, timelines
    from iossim.api import cost_model, optimize
    from iossim.cost.capabilities import DeviceCostModel
    from iossim.cost.model import problems_of
    from iossim.models.load import load

    network = load("ios_sample")
    prices = cost_model("simulator", "v100-sxm2", network.precision, "paper")
    assert isinstance(prices, DeviceCostModel)
    schedules = [optimize(network, "v100-sxm2", scheduler=name, engine="paper") for name in ("sequential", "ios-both")]
    block = load("inception_v3", block="mixed_7c")
    of_block = [optimize(block, "v100-sxm2", scheduler=each.scheduler, engine="paper") for each in schedules]
    return {
        "inception_block.svg": timelines(block, of_block, prices, 200, kernel_sizes(block)),
        "units.svg": ops_to_units(network),
        "blocks.svg": units_to_blocks(network, load("inception_v3")),
        "states.svg": states_and_stages(problems_of(network, prices)[0], prices),
        "timeline.svg": timelines(network, schedules, prices),
        "sms.svg": blocks_on_sms(network, schedules, ("c", "d"), prices.profile),
    }


@command
def predictions() -> None:
    """Write evidence/predictions.csv and print each row that moved by more than 1%."""
    from evidence.predictions import TABLE, computed, moved, read, write

    now = computed()
    for line in moved(read() if TABLE.exists() else {}, now):
        typer.echo(line)
    write(now)
    typer.echo(f"wrote {TABLE}", err=True)
