"""Read device profiles from YAML; :mod:`iossim.hardware.write` writes them."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any

from pydantic import ValidationError

from iossim.base.errors import DeviceError
from iossim.base.located_yaml import LocatedYamlError, read_located
from iossim.base.values import first_problem
from iossim.hardware.profile import DeviceProfile


@lru_cache(maxsize=64)  # a study needs the same few at each point, and profiles are immutable
def parse(text: str, where: str, read: Callable[[str], Any] | None = None) -> DeviceProfile:
    """A profile from YAML text, parsed by ``read`` for shipped files; ``where`` names it in errors.

    Raises DeviceError with the line of invalid YAML, and the field of an invalid value.
    """
    try:
        data = read(text) if read is not None else read_located(text).values
    except LocatedYamlError as error:
        field = f"field {'.'.join(map(str, error.location))!r} " if error.location else ""
        raise DeviceError(f"device profile {where}, line {error.line}: {field}{error.reason}") from None
    if not isinstance(data, dict):
        raise DeviceError(f"device profile {where} is not a mapping of fields; start from one of hw_profiles/")
    try:
        return DeviceProfile.model_validate(data)
    except ValidationError as error:
        raise DeviceError(f"device profile {where} is not valid: {first_problem(error)}; correct the file") from None
