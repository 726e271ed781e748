"""``python -m evidence pictures``: the pictures of docs/how_it_works.md."""

from __future__ import annotations

from pathlib import Path

import typer

FOLDER = Path(__file__).resolve().parents[2] / "docs" / "how_it_works"


def register(app: typer.Typer) -> None:
    app.command("pictures", help="Draw the pictures of docs/how_it_works.md.")(pictures)


def pictures() -> None:
    """Draw the sample network of the IOS thesis on a V100 under the paper's engine, and store the pictures."""
    from iossim.base.user_files import write_atomically

    FOLDER.mkdir(exist_ok=True)
    for name, svg in drawn().items():
        write_atomically(FOLDER / name, svg)
        typer.echo(f"wrote {FOLDER / name}", err=True)


def drawn() -> dict[str, str]:
    """The pictures by file name; the same text each time."""
    from evidence.guide.graphs import ops_to_units, units_to_blocks
    from evidence.guide.lattice import states_and_stages
    from evidence.guide.runs import blocks_on_sms, timelines
    from iossim.api import cost_model, optimize
    from iossim.cost.capabilities import DeviceCostModel
    from iossim.cost.model import problems_of
    from iossim.models.load import load

    network = load("ios_sample")
    prices = cost_model("simulator", "v100-sxm2", network.precision, "paper")
    assert isinstance(prices, DeviceCostModel)
    schedules = [optimize(network, "v100-sxm2", scheduler=name, engine="paper") for name in ("sequential", "ios-both")]
    return {
        "units.svg": ops_to_units(network),
        "blocks.svg": units_to_blocks(network, load("inception_v3")),
        "states.svg": states_and_stages(problems_of(network, prices)[0], prices),
        "timeline.svg": timelines(network, schedules, prices),
        "sms.svg": blocks_on_sms(network, schedules, ("c", "d"), prices.profile),
    }
