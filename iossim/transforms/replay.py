"""A changed network made again from its source: the model is loaded, then the transforms that it names are repeated."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace

from iossim.base.errors import ScheduleError
from iossim.base.registry import guest_modules, needed_part
from iossim.ir.network import ModelSource, Network
from iossim.models.load import load_source
from iossim.schedule.fit import fit
from iossim.schedule.schedule import AnySchedule
from iossim.transforms import fused_joins
from iossim.transforms.rewriting import rewritten
from iossim.transforms.transform import ScheduleT, changed_from


def joined_again(network: Network, text: str) -> Network:
    """The network with the joins that the text of its source names; raises ScheduleError for a text that names none."""
    try:
        saved = json.loads(text)
        fused, apart = (tuple(map(str, saved[way])) for way in ("fused", "apart"))
    except (ValueError, TypeError, KeyError):
        raise ScheduleError(
            f"option {fused_joins.OPTION!r} of the schedule's source names no joins of branches; write it anew"
        ) from None
    return fused_joins.with_chosen_joins(network, fused, apart)


#: Functions that repeat transforms from the texts of a source's options, by option, in the order of application; after
#: these come transforms of guests, ``again`` of a module ``OPTION_transform``.
_REPLAYS: dict[str, Callable[[Network, str], Network]] = {
    rewritten.OPTION: rewritten.rewritten_again,
    fused_joins.OPTION: joined_again,
}


#: Options of a source on which the units and blocks of a network depend, and not its graph.
_OF_UNITS = ("units", "max_block")


def split_source(source: ModelSource) -> tuple[ModelSource, dict[str, str]]:
    """The source of the model as it was loaded, and the texts of the transforms after it, by option."""
    options = dict(source.options)
    texts = {name: options.pop(name) for name in (*_REPLAYS, *guest_modules("transform")) if name in options}
    return replace(source, options=tuple(options.items())), texts


def replayed(network: Network, texts: dict[str, str]) -> Network:
    """The network with the transforms of a source repeated; raises ReplayError or ScheduleError where one cannot be."""
    before = network
    for name, text in texts.items():
        network = (_REPLAYS.get(name) or needed_part("transform", name, "again", name))(network, text)
    return changed_from(before, network)


def network_of(saved: AnySchedule, model: str | None = None) -> Network:
    """The network that a schedule was made for, which it fits; ``model`` is where it is now, if its file has moved.
    Raises ScheduleError where the schedule does not fit it, ReplayError where it cannot be changed so.
    """
    network = network_of_source(saved.source.to_source(model))
    fit(saved, network)
    return network


def at_batch(saved: AnySchedule, batch: int, model: str | None = None) -> tuple[AnySchedule, Network]:
    """A schedule and its network at another batch size; latencies in the schedule are still those at its own. Raises as
    :func:`network_of`, also for the network at its own batch size.
    """
    network_of(saved, model)
    return in_setup(saved, replace(saved.source.to_source(model), batch=batch), model)


def in_setup(saved: ScheduleT, there: ModelSource, model: str | None = None) -> tuple[ScheduleT, Network]:
    """A schedule and its network, in its own units and with its own changes, at the batch size and the precision of
    another source of its model. Raises as :func:`network_of`.
    """
    (own, changes), (there, _) = map(split_source, (saved.source.to_source(model), there))
    options = {name: text for name, text in there.options if name not in _OF_UNITS}
    options |= {name: text for name, text in own.options if name in _OF_UNITS}
    network = replayed(load_source(replace(there, options=tuple(options.items()))), changes)
    moved = saved.model_copy(update={"graph_hash": network.graph.hash})
    fit(moved, network)
    return moved, network


def in_units_of(saved: AnySchedule, network: Network | None) -> Network:
    """A loaded network with its joins fused or apart as in the schedule, which has to fit it; by default the schedule's
    own network. Raises as :func:`network_of`.
    """
    if network is None:
        return network_of(saved)
    text = split_source(saved.source.to_source())[1].get(fused_joins.OPTION)
    if text is not None and fused_joins.OPTION not in dict(network.source.options):
        network = changed_from(network, joined_again(network, text))
    fit(saved, network)
    return network


def network_of_source(given: ModelSource) -> Network:
    """The network of a source, its transforms repeated."""
    source, texts = split_source(given)
    return replayed(load_source(source), texts)
