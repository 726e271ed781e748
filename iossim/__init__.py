"""iossim: inter-operator scheduling of neural networks, priced by a GPU simulator or by measurement.

The same as the command line, in Python::

    network = iossim.load("inception_v3", batch=1)
    comparison = iossim.compare(network, "v100-sxm2")
    schedule = iossim.optimize(network, "v100-sxm2", scheduler="ios-both")
    elsewhere = iossim.simulate(schedule, "t4")

In a notebook, networks, schedules, comparisons and studies display as tables and pictures; ``.plot()`` returns the
picture, ``.to_dataframe()`` the rows.

Names are loaded on first use, so that importing iossim is cheap.
"""

from __future__ import annotations

import sys
from importlib import import_module
from importlib.machinery import ModuleSpec, PathFinder
from os import path as os_path
from types import ModuleType
from typing import TYPE_CHECKING

from iossim._version import __version__

if TYPE_CHECKING:
    from iossim.api import (
        compare,
        cost_model,
        explain,
        optimize,
        optimize_streams,
        predict,
        price,
        simulate,
        simulate_events,
    )
    from iossim.base.errors import IossimError
    from iossim.hardware.load import device
    from iossim.ir.network import Network
    from iossim.microbatching.microbatch_api import microbatch
    from iossim.models.load import load
    from iossim.profiles.corun import corun
    from iossim.schedule.schedule import Schedule
    from iossim.study.study_run import StudyRun
    from iossim.study.sweep import run_study
    from iossim.tasks.comparison import Comparison


class _Checkout:
    """Import finder for the subpackages that are outside the package in a checkout (an installation has them inside).

    It precedes all other finders and serves this copy of the package only, so that two source trees never mix.
    """

    @staticmethod
    def find_spec(name: str, path: object = None, target: ModuleType | None = None) -> ModuleSpec | None:
        if path is __path__ and name.partition(".")[2] in ("backends", "hw_profiles", "scenarios"):
            return PathFinder.find_spec(name, [os_path.dirname(_FOLDER)])
        return None


_FOLDER = os_path.dirname(os_path.abspath(__file__))
if not os_path.isdir(os_path.join(_FOLDER, "backends")):
    sys.meta_path.insert(0, _Checkout)

_NAMES = {
    "iossim.api": "compare cost_model explain optimize optimize_streams predict price simulate simulate_events",
    "iossim.base.errors": "IossimError",
    "iossim.hardware.load": "device",
    "iossim.ir.network": "Network",
    "iossim.models.load": "load",
    "iossim.profiles.corun": "corun",
    "iossim.microbatching.microbatch_api": "microbatch",
    "iossim.schedule.schedule": "Schedule",
    "iossim.study.study_run": "StudyRun",
    "iossim.study.sweep": "run_study",
    "iossim.tasks.comparison": "Comparison",
}
_HOMES = {name: module for module, names in _NAMES.items() for name in names.split()}

__all__ = [
    "Comparison",
    "IossimError",
    "Network",
    "Schedule",
    "StudyRun",
    "__version__",
    "compare",
    "corun",
    "cost_model",
    "device",
    "explain",
    "load",
    "microbatch",
    "optimize",
    "optimize_streams",
    "predict",
    "price",
    "run_study",
    "simulate",
    "simulate_events",
]


def __getattr__(name: str) -> object:
    if name == "torch":
        return import_module("iossim.torch")
    if name in _HOMES:
        return getattr(import_module(_HOMES[name]), name)
    raise AttributeError(f"module 'iossim' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
