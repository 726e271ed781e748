"""The backend's own settings, as they are given by name on a command line."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from iossim.errors import OptionError, did_you_mean
from iossim.ir.types import Precision

DEFAULT_WORKSPACE_LIMIT_BYTES = 256 * 2**20


@dataclass(frozen=True, slots=True)
class CudnnOptions:
    """``tf32`` and ``nondeterministic`` allow plans that multiply in TF32, or give other bits from run to run.

    ``workspace_limit_bytes`` bounds the workspace of a plan of cuDNN. ``clocks`` says how the user has set the device's
    clocks (``free`` unless said); it changes nothing but is part of what measurements are kept under.
    """

    tf32: bool = False
    nondeterministic: bool = False
    workspace_limit_bytes: int = DEFAULT_WORKSPACE_LIMIT_BYTES
    clocks: str = "free"

    @property
    def pairs(self) -> tuple[tuple[str, str], ...]:
        """Sorted names and values."""
        return (
            ("clocks", self.clocks),
            ("nondeterministic", str(self.nondeterministic).lower()),
            ("tf32", str(self.tf32).lower()),
            ("workspace_limit_bytes", str(self.workspace_limit_bytes)),
        )


def parsed_options(precision: Precision, options: Mapping[str, str]) -> CudnnOptions:
    """Raises OptionError for an unknown name or value; TF32 is allowed by default where the precision is TF32."""
    known = [name for name, _ in CudnnOptions().pairs]
    for name in options:
        if name not in known:
            raise OptionError(f"backend option {name!r} is not known; {did_you_mean(name, known)}")
    limit = options.get("workspace_limit_bytes", str(DEFAULT_WORKSPACE_LIMIT_BYTES))
    if not limit.isdecimal():
        raise OptionError(f"backend option workspace_limit_bytes is {limit!r}; give a number of bytes")
    return CudnnOptions(
        _truth("tf32", options.get("tf32", str(precision is Precision.TF32))),
        _truth("nondeterministic", options.get("nondeterministic", "false")),
        int(limit),
        options.get("clocks", "free"),
    )


def _truth(name: str, value: str) -> bool:
    text = value.lower()
    if text in ("true", "yes", "on", "1"):
        return True
    if text in ("false", "no", "off", "0"):
        return False
    raise OptionError(f"backend option {name} is {value!r}; give true or false")
