"""``iossim doctor``: this machine's hardware, the backends that can run on it, and what the others lack."""

from __future__ import annotations

import os
import platform
import re
import textwrap
from collections.abc import Iterator
from importlib import metadata
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any

from iossim._version import __version__
from iossim.base.errors import OptionError
from iossim.base.threads import usable_cores
from iossim.cli.options import ModelOptions, command
from iossim.cli.outputs import present

if TYPE_CHECKING:
    from iossim.ir.network import Network

#: Parts of a requirement such as ``onnxruntime>=1.18; extra == "cpu"``: the name, and the extra.
_NAME = re.compile(r"[A-Za-z0-9._-]+")
_EXTRA = re.compile(r"extra\s*==\s*['\"]([^'\"]+)['\"]")
#: Facts of this machine by name, as JSON values.
Facts = dict[str, Any]
_CAUSE = itemgetter("kind", "reason")


@command
def doctor(reading: ModelOptions, model: str | None = None, as_json: bool = False) -> None:
    """Report this machine's hardware and backends; of a model, the ops that a GPU's backend computes on the host."""
    if model is None and reading != ModelOptions():
        raise OptionError("options of reading a model need a MODEL; name one, or leave them out")

    parts = (machine, gpus, extras, libraries, backends, devices, plugins, folders)
    found: Facts = {"iossim": __version__, **{part.__name__: part() for part in parts}}
    if model is not None:
        found["model"] = fallbacks(reading.network(model))
    present(found, _lines(found), as_json)


def machine() -> Facts:
    """Python, operating system, cores that this process may use, and memory (None where the system does not say)."""
    return {
        "python": f"{platform.python_implementation()} {platform.python_version()}",
        "system": platform.platform(),
        "architecture": platform.machine(),
        "cores": os.cpu_count(),
        "usable_cores": len(usable_cores()),
        "memory_gib": _memory_gib(),
    }


def gpus() -> list[Facts]:
    """Each GPU as reported by ``nvidia-smi``; none where that is missing."""
    from dataclasses import asdict

    from iossim.hardware.nvidia_smi import gpus as found

    return [asdict(gpu) for gpu in found()]


def libraries() -> dict[str, str | None]:
    """Version of each library that iossim can use, by name; None for those that are not installed."""
    return {name: _version(name) for name in sorted({name for names in _required().values() for name in names})}


def extras() -> dict[str, Facts]:
    """Extras by name: True where completely installed, and what is missing; empty where iossim is not installed."""
    absent = {extra: [name for name in names if _version(name) is None] for extra, names in _required().items()}
    return {extra: {"installed": not lacks, "missing": lacks} for extra, lacks in absent.items() if extra}


def backends() -> list[Facts]:
    """Each backend: whether it can run here, with what (precisions, layouts, fused calls), or the reason and remedy."""
    from iossim.execution.backend import backend_names, missing_for, offers_of

    lacking = {name: missing_for(name) or None for name in backend_names()}
    return [
        {"name": name, "usable": lacks is None, "missing": lacks, "offers": offers_of(name) if lacks is None else []}
        for name, lacks in lacking.items()
    ]


def fallbacks(network: Network) -> Facts:
    """Name and number of ops of a network; for each GPU backend, the ops that it computes on the host."""
    from dataclasses import asdict

    from iossim.execution.backend import fallbacks_of

    found = {name: [asdict(each) for each in rows] for name, rows in fallbacks_of(network).items()}
    return {"name": network.name, "ops": len(network.graph.nodes), "on_the_host": found}


def devices() -> Facts:
    """Number of devices with a profile, and whether this machine's own CPU is one of them."""
    from iossim.hardware.names import device_names

    names = device_names()
    return {"profiles": len(names), "cpu_profile": "cpu" in names}


def plugins() -> list[Facts]:
    """Extensions by other packages: group, name and package, and the problem, None without one."""
    from iossim.base.registry import guest_modules, guest_part
    from iossim.cli.main import commands_of
    from iossim.cli.schedules import OUTPUTS
    from iossim.cost.create import COST_MODELS
    from iossim.execution.backend import BACKENDS
    from iossim.hardware.kind import DEVICE_KINDS
    from iossim.hardware.load import DEVICES
    from iossim.ir.op import OPS
    from iossim.models.passes.pipeline import PASSES
    from iossim.search.scheduler import SCHEDULERS
    from iossim.transforms.rewriting.rule_sets import RULE_SETS

    states = [*OPS.states(), *SCHEDULERS.states(), *COST_MODELS.states(), *DEVICES.states(), *DEVICE_KINDS.states()]
    states += [*PASSES.states(), *RULE_SETS.states(), *BACKENDS.states(), *OUTPUTS.states()]
    states += [one for name in guest_modules("kind") for one in guest_part("kind", name, "GROUP").states()]
    return [
        {"group": each.group, "name": each.name, "package": each.package, "problem": problem or None}
        for each, problem in [*states, *commands_of("iossim.cli").states()]
    ]


def folders() -> dict[str, Facts]:
    """Paths of the user's data and caches, and whether each exists."""
    from iossim.base.user_folders import user_cache, user_data
    from iossim.cost.measured.store import default_store

    places: dict[str, Path] = {"data": user_data(), "measurement store": default_store(), "cache": user_cache()}
    return {name: {"path": str(path), "exists": path.exists()} for name, path in places.items()}


def _required() -> dict[str, list[str]]:
    """Requirements of iossim by extra, ``""`` for the unconditional ones, from the installed metadata."""
    try:
        lines = metadata.requires("iossim") or []
    except metadata.PackageNotFoundError:
        return {}  # run from a checkout
    found: dict[str, list[str]] = {"": []}
    for line in lines:
        name, extra = _NAME.match(line), _EXTRA.search(line)
        if name is not None:
            found.setdefault(extra.group(1) if extra else "", []).append(name.group())
    return found


def _version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def _memory_gib() -> float | None:
    try:
        return round(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 2**30, 1)
    except (AttributeError, ValueError, OSError):
        return None


def _lines(found: Facts) -> Iterator[str]:
    own, seen = found["machine"], found["devices"]
    memory = "" if own["memory_gib"] is None else f", {own['memory_gib']} GiB of memory"
    yield f"iossim {found['iossim']}, {own['python']}, {own['system']}"
    yield f"{own['usable_cores']} of {own['cores']} cores{memory}"
    for gpu in found["gpus"]:
        yield f"GPU: {gpu['name']}, compute capability {gpu['compute_capability']}, driver {gpu['driver_version']}"
    if not found["gpus"]:
        yield "GPU: none (nvidia-smi finds no NVIDIA GPU)"
    yield f"Device profiles: {seen['profiles']} (see 'iossim devices list')"
    if not seen["cpu_profile"]:
        yield "This machine's CPU has no profile yet; 'iossim profile MODEL --backend onnxruntime_cpu' makes one"
    yield "\nBackends"
    for row in found["backends"]:
        yield f"  {row['name']:<16} {'usable' if row['usable'] else row['missing']}"
        yield from (f"  {'':<16} {line}" for line in row["offers"])
    if found["extras"]:
        yield "\nExtras (pip install 'iossim[NAME]')"
    for name, extra in found["extras"].items():
        yield f"  {name:<16} {'installed' if extra['installed'] else 'lacks ' + ', '.join(extra['missing'])}"
    if found["plugins"]:
        yield "\nPlugins"
    for row in found["plugins"]:
        if row["problem"]:
            yield f"  {row['problem']}"
        else:
            yield f"  {row['name']:<16} {row['group']}, of {row['package']}"
    versions = [f"{name} {version}" for name, version in found["libraries"].items() if version is not None]
    if versions:
        yield "\nLibraries"
        yield textwrap.fill(", ".join(versions), 80, initial_indent="  ", subsequent_indent="  ")
    for name, rows in found.get("model", {}).get("on_the_host", {}).items():
        model = found["model"]
        yield f"\nOps of {model['name']} that {name} computes on the host: {len(rows) or 'none'} of {model['ops']}"
        for (kind, reason), same in groupby(sorted(rows, key=_CAUSE), _CAUSE):
            ops = [row["op"] for row in same]
            yield f"  {kind}: {reason} ({', '.join(ops[:3])}{f' and {len(ops) - 3} more' if len(ops) > 3 else ''})"
    yield "\nFolders"
    for name, folder in found["folders"].items():
        yield f"  {name:<18} {folder['path']}{'' if folder['exists'] else ' (not there yet)'}"
