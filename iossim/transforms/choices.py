"""The loop that all searches over networks share: ways to run a network, each priced by the schedule that it allows.

A :class:`Choices` is itself a cost of networks, that of the best way, and prices its ways by another cost: the
schedule, or further choices within each way. So joins in micro-batches in rewritings are three of them, one inside the
other, and a search without one of them leaves a layer out.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain, product
from math import inf, prod
from typing import Generic, Protocol, TypeVar

from iossim.base.errors import OptionError, ScheduleError, ignore
from iossim.cost.capabilities import MeasuredBy, MeasuringCostModel
from iossim.cost.model import CostModel
from iossim.ir.network import Network
from iossim.schedule.schedule import Schedule
from iossim.search.memo import SearchMemo
from iossim.search.options import SearchOptions
from iossim.search.scheduler import schedule

#: Most ways of a network that are all tried.
EVERY = 64
#: Relative difference of costs below which the first way stays.
LEAST_GAIN = 1e-9

V = TypeVar("V", bound=Hashable)


def refuse_measuring(prices: CostModel, option: str, remedy: str = "give simulator") -> None:
    """Raise OptionError for a cost model that measures, under an option that asks for the prices of many networks."""
    if isinstance(prices, MeasuringCostModel) and prices.measured_by is not MeasuredBy.STORE:
        name = prices.identity.name
        raise OptionError(
            f"{option} asks for the prices of thousands of networks, and `cost_model` {name} measures; {remedy}"
        )


class GraphCost(Protocol):
    """Microseconds of a network; ``inf`` for one that cannot run."""

    def us(self, network: Network) -> float: ...

    def at_least_us(self, network: Network) -> float:
        """A lower bound of :meth:`us`, cheaper where that is expensive."""
        return self.us(network)

    def near_us(self, network: Network, like: Network, most_us: float = inf) -> float:
        """:meth:`us`, or an upper estimate of it if that is expensive and known for the similar network ``like``; a
        lower bound if that exceeds ``most_us``.
        """
        return self.us(network)


@dataclass(eq=False)
class BySchedule(GraphCost):
    """Latency of a scheduler's schedule; blocks are solved once for all networks. An interrupted search raises
    KeyboardInterrupt; exceptions of ``check`` pass through.
    """

    cost_model: CostModel
    scheduler: str
    options: SearchOptions
    memo: SearchMemo
    check: Callable[[], None] = lambda: None
    _found: dict[Network, Schedule] = field(default_factory=dict, repr=False)

    def found(self, network: Network) -> Schedule:
        if network not in self._found:
            options = replace(self.options, company=False)
            told = lambda done, total: self.check()  # noqa: E731
            found = schedule(network, self.cost_model, self.scheduler, options, told, self.memo)
            self.check()
            if not found.complete:
                raise KeyboardInterrupt
            self._found[network] = found
        return self._found[network]

    def us(self, network: Network) -> float:
        try:
            return self.found(network).latency_us
        except ScheduleError:
            return inf  # a unit that the cost model has no price for

    def at_least_us(self, network: Network) -> float:
        return 0.0


class Choices(GraphCost, Generic[V]):
    """Cost of a network run in the best of several ways, each priced once by ``inner``: a way has a value for each of
    the network's coordinates.

    Coordinate descent from the given way and from :meth:`starts`: one coordinate after the other changes to its best
    value with the others fixed, until none gains. If there are few ways, all are tried. Never worse than the given way.
    After a KeyboardInterrupt :meth:`best` is the best way tried so far.
    """

    #: Whether the loop descends from the starts, or takes the best of them; whether it tries all ways if they are few.
    climbs, exhausts = True, False

    def __init__(self, inner: GraphCost, tell: Callable[[int], None] = ignore) -> None:
        self.inner, self.tell = inner, tell
        self.seen = 0
        self._tried: dict[Network, dict[tuple[V, ...], tuple[float, Network]]] = {}
        self._best: dict[Network, tuple[V, ...]] = {}
        self._begin: dict[Network, tuple[tuple[V, ...], Sequence[int]]] = {}

    def keys(self, network: Network) -> Sequence[Hashable]:
        """The coordinates of a network: equal ones in networks that differ little."""
        raise NotImplementedError

    def options(self, network: Network) -> Sequence[Sequence[V]]:
        """The values of each coordinate; first that of the given way."""
        raise NotImplementedError

    def made(self, network: Network, way: tuple[V, ...]) -> Network | None:
        """The network in another way; None where it cannot be."""
        raise NotImplementedError

    def applied(self, network: Network, to: Network) -> tuple[Network, Mapping[str, int]]:
        """The network ``to``, which is ``network`` but for its source, in its best way, and that which is divided then:
        number of parts by unit. The source says how it was made.
        """
        raise NotImplementedError

    def starts(self, network: Network) -> Iterable[tuple[V, ...]]:
        """Ways to begin with, each made once the one before is priced."""
        return ()

    def given(self, network: Network) -> tuple[V, ...]:
        """The way that a network is in."""
        return tuple(values[0] for values in self.options(network))

    def every(self, network: Network) -> Iterable[tuple[V, ...]]:
        """All ways, where they are at most :data:`EVERY`; else none."""
        options = self.options(network)
        return product(*options) if prod(map(len, options)) <= EVERY else ()

    def moved(self, way: tuple[V, ...], like: Network, network: Network) -> tuple[V, ...]:
        """A way of one network in another, which differs from it little."""
        known = dict(zip(self.keys(like), way, strict=True))
        pairs = zip(self.keys(network), self.given(network), strict=True)
        return tuple(known.get(key, value) for key, value in pairs)

    def best(self, network: Network) -> tuple[V, ...]:
        """The best way: of equal ones the one that was tried first."""
        tried = self.tried(network)
        return min(tried, key=lambda way: tried[way][0] * (1 + LEAST_GAIN * (way != self.given(network))))

    def tried(self, network: Network) -> dict[tuple[V, ...], tuple[float, Network]]:
        """Cost in us, and the network, of each tried way."""
        if not self._tried.get(network):  # none, or its first way took too long
            self.way_us(network, self.given(network))
        return self._tried[network]

    def search(self, network: Network) -> float:
        """Look for the best way; its cost in us."""
        if network not in self._best:
            begun = self._begin.get(network)
            self.way_us(network, self.given(network))
            every = list(self.every(network)) if self.exhausts else []
            for way in every:
                self.way_us(network, way, min(us for us, _ in self.tried(network).values()))
            if not every:
                if begun is not None:
                    self._climb(network, *begun)
                for way in () if begun else chain((self.given(network),), self.starts(network)):
                    self._climb(network, way, range(len(way)))
            self._best[network] = self.best(network)
        return self.tried(network)[self._best[network]][0]

    def us(self, network: Network) -> float:
        return self.search(network)

    def at_least_us(self, network: Network) -> float:
        return 0.0  # some way may be better than the bound of any other

    def near_us(self, network: Network, like: Network, most_us: float = inf) -> float:
        """Cost of the network in the best way of ``like``, or a lower bound that exceeds ``most_us``."""
        if like not in self._best or network in self._tried:
            return self.us(network)
        way, known = self.moved(self._best[like], like, network), set(self.keys(like))
        self._begin[network] = way, [place for place, key in enumerate(self.keys(network)) if key not in known]
        return self.way_us(network, way, most_us)

    def way_us(self, network: Network, way: tuple[V, ...], most_us: float = inf) -> float:
        """Cost of the network in a way, us: inf if it is impossible, or a lower bound that exceeds ``most_us``."""
        known = self._tried.setdefault(network, {}).get(way)
        if known is not None:
            return known[0]
        made = network if way == self.given(network) else self.made(network, way)
        if made is None:
            return self._keep(network, way, network, inf)
        least_us = self.inner.at_least_us(made) if most_us < inf else 0.0
        return least_us if least_us > most_us else self._keep(network, way, made, self.inner.us(made))

    def _keep(self, network: Network, way: tuple[V, ...], made: Network, us: float) -> float:
        self._tried.setdefault(network, {})[way] = us, made
        self.seen += 1
        self.tell(self.seen)
        return us

    def _climb(self, network: Network, way: tuple[V, ...], places: Sequence[int]) -> None:
        """Coordinate descent from a way."""
        gained, best_us, options = self.climbs, self.way_us(network, way), self.options(network)
        while gained:
            gained = False
            for place in places:
                others = [value for value in options[place] if value != way[place]]
                for one in [(*way[:place], value, *way[place + 1 :]) for value in others]:
                    if (us := self.way_us(network, one, best_us)) < best_us:
                        way, best_us, gained = one, us, True
