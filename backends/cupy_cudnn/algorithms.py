"""Choice of an execution plan of cuDNN for each convolution: the fastest alone, within a limit of workspace.

The published engine chooses so, as does the autotuner of any framework. The first few plans of cuDNN's own ranking are
timed (:mod:`.candidate_timing`), fused with their epilogue and apart from it, beside other calls that compute the
same; a choice is made once for all equal convolutions, and kept in a file for other networks and later runs.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Hashable, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

from iossim.backends.cupy_cudnn.candidate_timing import CandidateTiming
from iossim.backends.cupy_cudnn.convolution import ConvolutionCall
from iossim.backends.cupy_cudnn.unit_calls import UnitProgram
from iossim.base.errors import OptionError, PlanError, warn_once
from iossim.base.user_files import read_json, read_text, write_atomically
from iossim.execution.backend import BackendError, Choice
from iossim.schedule.batch import FASTEST, UnitVariant

FORMAT = "iossim choices of cuDNN's plans, 1"
_REMEDY = "name another file, or remove this one"
#: Variants are also sought among plans for these fractions of the SMs: cuBLASLt accepts any number, cuDNN few.
TARGETS = (2, 8)
#: Number of variants besides the fastest; how many times as long each may take, and the fraction that it may hold.
MOST_LIGHTER, MOST_TIMES, LESS = 3, 3.0, 0.8
#: A choice as the file has it.
_Row = dict[str, Any]


class KeptChoices:
    """The choices for one place in the file at ``path``, which is created on demand, with its folder; without a path in
    no file.

    Raises OptionError for a file of another kind, which is never overwritten. If the file cannot be written, a warning
    says so.
    """

    def __init__(self, path: Path | None, where: Mapping[str, str]) -> None:
        self._path, self._where = path, json.dumps(dict(where), sort_keys=True)
        self._places: dict[str, dict[str, _Row]] = {}
        self._read_at: tuple[int, int] | None = None
        self._read()

    def find(self, key: Hashable) -> UnitVariant | None:
        """The choice kept for equal work, by this process or another."""
        self._read()
        found = self._own.get(_name(key))
        return None if found is None else _kept(found)

    def lighter(self, key: Hashable) -> list[UnitVariant]:
        """The choice kept for equal work and its variants; none until these have been sought."""
        self._read()
        return [_kept(row) for row in self._own.get(_name(key), {}).get("lighter", ())]

    def keep(self, key: Hashable, about: str, fastest: UnitVariant, lighter: Sequence[UnitVariant] = ()) -> None:
        """Add a choice and its variants; on return they are in the file, unless it cannot be written."""
        self._read()
        self._own[_name(key)] = {"of": about, **_row(fastest)}
        if lighter:
            held = [_row(each) | {"blocks": each.blocks, "sm_share": each.sm_share} for each in lighter]
            self._own[_name(key)]["lighter"] = held
        if self._path is None:
            return
        places = [{"where": json.loads(where), "choices": choices} for where, choices in sorted(self._places.items())]
        text = json.dumps({"format": FORMAT, "places": places}, indent=1, sort_keys=True) + "\n"
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            write_atomically(self._path, text)
        except OSError as error:
            warn_once(
                f"choices of algorithms cannot be kept in {self._path}: {error.strerror}; give option choices off, or "
                "name another file"
            )

    @property
    def _own(self) -> dict[str, _Row]:
        return self._places.setdefault(self._where, {})

    def _read(self) -> None:
        """Adopt the contents of the file, if it was written since the last read."""
        if self._path is None:
            return
        try:
            facts = self._path.stat()
        except OSError:
            return
        if (facts.st_mtime_ns, facts.st_size) == self._read_at:
            return
        self._read_at = facts.st_mtime_ns, facts.st_size
        text = read_text(self._path, "backend option choices:", _REMEDY, OptionError)
        try:
            found = read_json(text)
            if found["format"] != FORMAT:
                raise ValueError(f"its format is {found['format']!r}")
            for place in found["places"]:
                choices = self._places.setdefault(json.dumps(place["where"], sort_keys=True), {})
                for name, kept in place["choices"].items():
                    for row in (kept, *kept.get("lighter", ())):
                        _kept(row)
                    choices[name] = dict(kept)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            reason = " ".join(str(error).split())[:100]
            raise OptionError(
                f"backend option choices: {self._path} is no file of choices ({reason}); {_REMEDY}"
            ) from None


def _row(found: UnitVariant) -> _Row:
    return {"algorithm": found.name, "time_us": round(found.alone_us, 3)}


def _kept(row: _Row) -> UnitVariant:
    """The variant of a row, which does not say its workspace: 0 stands for it."""
    held = int(row.get("blocks", 0)), float(row.get("sm_share", 0.0))
    return UnitVariant(str(row["algorithm"]), float(row["time_us"]), 0, *held)


def _name(key: Hashable) -> str:
    """Name of a key, the same in every process."""
    return hashlib.sha256(repr(key).encode()).hexdigest()[:24]


class Algorithms:
    """Chooses once for all equal convolutions, among ``most`` plans of each kind; ``known`` are the choices so far, of
    which so many were ``recalled`` from a file.
    """

    def __init__(self, timing: CandidateTiming, workspace_limit_bytes: int, most: int, kept: KeptChoices) -> None:
        self._driver, self._library, self.timing, self._kept = timing.lane.driver, timing.lane.library, timing, kept
        self._limit, self._most = workspace_limit_bytes, most
        self.known: dict[Hashable, UnitVariant] = {}
        self._lighter: dict[Hashable, list[UnitVariant]] = {}
        self.recalled = 0

    def choice(self, program: UnitProgram, variant: str = FASTEST) -> Choice:
        """The choices for a program's convolutions as one text, and the scratch memory that it needs.

        Raises PlanError for a variant that is not such a text, or names a plan that cannot run here.
        """
        timed = self.chosen(program, variant)
        name = _joined(timed)
        if variant not in (FASTEST, name):
            raise PlanError(
                f"the schedule runs a unit as {variant!r}, which no plans of cuDNN are called here; search again on "
                "this device, or leave the variant out of the schedule"
            )
        return Choice(name, program.scratch_bytes + most_workspace(timed))

    def variants(self, program: UnitProgram) -> tuple[UnitVariant, ...]:
        """The fastest way and the ways of :meth:`lighter`, each for all convolutions of a program at once.

        Times are those of the convolutions alone; of several, the one that holds most of an SM counts.
        """
        ways = [self.lighter(call) for call in program.convolutions]
        found: dict[str, UnitVariant] = {}
        for level in range(max(map(len, ways), default=1)):
            own = [each[min(level, len(each) - 1)] for each in ways]
            most = max(own, key=lambda one: one.sm_share, default=UnitVariant("", 0.0, 0))
            held = program.scratch_bytes + most_workspace(own), most.blocks, most.sm_share
            name = _joined(own) if level else FASTEST
            found.setdefault(name, UnitVariant(name, sum(one.alone_us for one in own), *held))
        return tuple(found.values())

    def lighter(self, call: ConvolutionCall) -> list[UnitVariant]:
        """The fastest way to run a call, then up to :data:`MOST_LIGHTER` slower ones, each holding less of an SM or of
        the device than those before it; timed once, and kept with the choice.
        """
        if call.key not in self._lighter:
            fastest = self.fastest(call)
            found = [one for row in self._kept.lighter(call.key) if (one := self._again(call, row)) is not None]
            if not found or found[0].name != fastest.name:
                found = _lighter(fastest, self._times(call, every=True))
                self._kept.keep(call.key, str(call.convolution), fastest, found)
            self._lighter[call.key] = found
        return self._lighter[call.key]

    def chosen(self, program: UnitProgram, algorithm: str) -> list[UnitVariant]:
        """The choices that ``algorithm`` (a text of :meth:`choice`, or empty) names, one for each convolution.

        The fastest is taken if it names none, or one that cuDNN does not offer for these operands.
        """
        calls = program.convolutions
        names = algorithm.split()
        if len(names) != len(calls):
            return [self.fastest(call) for call in calls]
        return [self._named(call, name) or self.fastest(call) for call, name in zip(calls, names, strict=True)]

    def fastest(self, call: ConvolutionCall) -> UnitVariant:
        """Raises BackendError where no plan can run the call."""
        if call.key not in self.known:
            kept = self._kept.find(call.key)
            recalled = None if kept is None else self._again(call, kept)
            fastest = recalled or self._times(call)[0]
            if recalled is None:
                self._kept.keep(call.key, str(call.convolution), fastest)
            self.known[call.key] = fastest
            self.recalled += recalled is not None
        return self.known[call.key]

    def every(self, program: UnitProgram) -> list[UnitVariant]:
        """All candidates for a program of one convolution, timed with equal care; the fastest first."""
        if len(program.convolutions) != 1:
            raise BackendError(
                f"a unit of {len(program.convolutions)} convolutions has no one algorithm; give one of a single "
                "convolution"
            )
        timed = self._times(program.convolutions[0], every=True)
        return [UnitVariant(one.name, one.alone_us, program.scratch_bytes + one.workspace_bytes) for one in timed]

    def candidates(self, call: ConvolutionCall, targets: Sequence[int] = ()) -> Iterator[tuple[str, int]]:
        """The first ways of each kind to run a call within the limit, with their workspaces, and the first for each of
        the ``targets``, numbers of SMs.

        A way of several calls is one candidate, each call in its fastest way; none if one of them has no way.
        """
        for way in call.ways:
            asked = call.asked(way)
            if asked is None:
                try:
                    parts = [self.fastest(part) for part in call.parts(way)]
                except BackendError:
                    continue
                yield ":".join(filter(None, (way, "+".join(part.name for part in parts)))), most_workspace(parts)
                continue
            for sms in (0, *targets):
                plans = self._library.plans(asked, sms)
                fitting = (plan for plan in plans if plan.workspace_bytes <= self._limit)
                for plan in islice(fitting, 1 if sms else self._most):
                    yield f"{way}:{plan.name}", plan.workspace_bytes

    def _named(self, call: ConvolutionCall, name: str) -> UnitVariant | None:
        """The way with this name, if it can run the call; only its plan is built."""
        known = self.known.get(call.key)
        if known is not None and known.name == name:
            return known
        way, _, plan_name = name.partition(":")
        if way not in call.ways:
            return None
        asked = call.asked(way)
        if asked is None:
            calls, names = call.parts(way), list(filter(None, plan_name.split("+")))
            found = [self._named(*part) for part in zip(calls, names, strict=False)]
            parts = [part for part in found if part is not None]
            fits = len(parts) == len(calls) == len(names)
            return UnitVariant(name, 0.0, most_workspace(parts)) if fits else None
        plan = self._library.named(asked, plan_name)
        if plan is None or plan.workspace_bytes > self._limit:
            return None
        return UnitVariant(name, 0.0, plan.workspace_bytes)

    def _again(self, call: ConvolutionCall, kept: UnitVariant) -> UnitVariant | None:
        """A way that was kept for the call, if it can still run it."""
        found = self._named(call, kept.name)
        return None if found is None else kept._replace(workspace_bytes=found.workspace_bytes)

    def _times(self, call: ConvolutionCall, *, every: bool = False) -> list[UnitVariant]:
        """The fastest candidates in order; with ``every``, all of them, also those for part of the SMs, with resources.

        Raises BackendError if there are none.
        """
        refusals = self.timing.refusals
        refused = len(refusals)
        targets = [self._driver.facts.sms // part for part in TARGETS if self._driver.facts.sms >= part]
        candidates = dict(self.candidates(call, targets if every else ()))
        # A broken device fails every plan: its own error is raised here, rather than that there are no plans.
        self._driver.synchronize()
        finalists = len(candidates) if every else None
        timed = self.timing.times_us(call, candidates, finalists) if candidates else []
        if not timed:
            why = f" ({refusals[0]})" if len(refusals) > refused else ""
            raise BackendError(
                f"cuDNN offers no way to run {call.convolution} within a workspace of {self._limit} bytes and the "
                f"numerical options{why}; raise workspace_limit_bytes, or allow tf32 or nondeterministic"
            )
        return timed


def _lighter(fastest: UnitVariant, timed: Sequence[UnitVariant]) -> list[UnitVariant]:
    """The fastest way, and those of :meth:`Algorithms.lighter` among all timed ones."""
    found = [next((one for one in timed if one.name == fastest.name), fastest)]
    for one in timed:
        share, blocks = min(each.sm_share for each in found), min(each.blocks for each in found)
        holds_less = 0 < one.blocks <= LESS * blocks or 0 < one.sm_share <= LESS * share
        if holds_less and found[0].alone_us <= one.alone_us <= MOST_TIMES * found[0].alone_us:
            found.append(one)
    return found[: 1 + MOST_LIGHTER]


def _joined(timed: Sequence[UnitVariant]) -> str:
    return " ".join(found.name for found in timed)


def most_workspace(parts: Sequence[UnitVariant]) -> int:
    """Workspace of consecutive calls: the largest."""
    return max((part.workspace_bytes for part in parts), default=0)
