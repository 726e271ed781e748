"""Streams that have some SMs of a device to themselves: green contexts, by the driver's own interface.

Source: ``cuda.h`` of CUDA 13.0, section "Green Contexts" (in drivers since CUDA 12.4; streams of them since 12.5). A
part is split off the SMs that those before it left, and the last one takes all that is left, so that parts of one
division are disjoint. Which SMs a part gets the driver decides: only their number is asked for.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any

from iossim.execution.backend import BackendError

#: ``CU_DEV_RESOURCE_TYPE_SM``, ``CU_GREEN_CTX_DEFAULT_STREAM`` and ``CU_STREAM_NON_BLOCKING``.
_SM, _DEFAULT_STREAM, _NON_BLOCKING = 1, 1, 1
_CALLS = (
    "cuDeviceGetDevResource", "cuDevSmResourceSplitByCount", "cuDevResourceGenerateDesc", "cuGreenCtxCreate",
    "cuGreenCtxStreamCreate",
)  # fmt: skip
_REMEDY = "give `engine` graph"


class DevResource(ctypes.Structure):
    """``CUdevResource`` of SMs: a type, 92 bytes of the driver's own, a union of 48 that begins with their count."""

    _fields_ = (
        ("type", ctypes.c_uint),
        ("internal", ctypes.c_ubyte * 92),
        ("sm_count", ctypes.c_uint),
        ("rest", ctypes.c_ubyte * 44),
    )


class GreenContexts:
    """The contexts of one device, made when a stream of theirs is first asked for, and kept.

    ``library`` is the driver's, loaded by ctypes. Raises BackendError where it has no green contexts.
    """

    def __init__(self, library: Any, device: int = 0) -> None:
        self._library, self._device = library, device
        lacking = next((name for name in _CALLS if not hasattr(library, name)), None)
        if lacking is not None:
            raise BackendError(
                f"`engine` partition needs green contexts, and this driver has no {lacking}; install one of CUDA 12.5 "
                f"or newer, or {_REMEDY}"
            )
        self._contexts: dict[tuple[range, ...], list[ctypes.c_void_p]] = {}

    def stream(self, division: tuple[range, ...], part: int) -> int:
        """A new stream, as the driver's handle, of a part of a division: ranges of SMs, rising and disjoint."""
        if division not in self._contexts:
            self._contexts[division] = self._divided(division)
        stream = ctypes.c_void_p()
        context = self._contexts[division][part]
        self._call("cuGreenCtxStreamCreate", ctypes.byref(stream), context, _NON_BLOCKING, 0)
        return int(stream.value or 0)

    def _divided(self, division: Sequence[range]) -> list[ctypes.c_void_p]:
        left = DevResource()
        self._call("cuDeviceGetDevResource", self._device, ctypes.byref(left), _SM)
        if division[-1].stop > left.sm_count:
            raise BackendError(
                f"the plan divides {division[-1].stop} SMs and this GPU has {left.sm_count}; plan for its own profile"
            )
        whole, contexts, begin = left.sm_count, [], 0
        for sms in division:
            if sms.start > begin:  # what no part of the division has
                _, left = self._split(left, sms.start - begin)
            own, left = (left, left) if sms.stop == whole else self._split(left, len(sms))
            contexts.append(self._context(own))
            begin = sms.stop
        return contexts

    def _split(self, whole: DevResource, count: int) -> tuple[DevResource, DevResource]:
        """So many SMs, and those that are left."""
        own, left, groups = DevResource(), DevResource(), ctypes.c_uint(1)
        self._call(
            "cuDevSmResourceSplitByCount",
            ctypes.byref(own),
            ctypes.byref(groups),
            ctypes.byref(whole),
            ctypes.byref(left),
            0,
            count,
        )
        if (groups.value, own.sm_count) != (1, count):
            raise BackendError(
                f"the driver gives a green context {own.sm_count} SMs where the plan has {count}; plan for this GPU's "
                f"own profile, or {_REMEDY}"
            )
        return own, left

    def _context(self, resource: DevResource) -> ctypes.c_void_p:
        described, context = ctypes.c_void_p(), ctypes.c_void_p()
        self._call("cuDevResourceGenerateDesc", ctypes.byref(described), ctypes.byref(resource), 1)
        self._call("cuGreenCtxCreate", ctypes.byref(context), described, self._device, _DEFAULT_STREAM)
        return context

    def _call(self, name: str, *arguments: Any) -> None:
        error = getattr(self._library, name)(*arguments)
        if error:
            raise BackendError(f"the driver divides no SMs ({name} says error {error}); {_REMEDY}")


def divisions(parts: Sequence[range | None]) -> dict[int, tuple[tuple[range, ...], int]]:
    """For each launch that has SMs of its own, by its place among ``parts``, its division and its part of that.

    Launches in the order of issue belong to one division while their SMs are disjoint or the same.
    """
    found: dict[int, tuple[tuple[range, ...], int]] = {}
    members: list[tuple[int, range]] = []

    def close() -> None:
        division = tuple(sorted({sms for _, sms in members}, key=lambda sms: sms.start))
        found.update({place: (division, division.index(sms)) for place, sms in members})
        members.clear()

    for place, sms in enumerate(parts):
        if sms is None:
            close()
            continue
        if any(sms != other and sms.start < other.stop and other.start < sms.stop for _, other in members):
            close()
        members.append((place, sms))
    close()
    return found


def driver_library() -> Any:
    """The driver's library, as it is installed with it; raises BackendError where there is none."""
    try:
        return ctypes.CDLL("libcuda.so.1")
    except OSError as error:
        raise BackendError(f"`engine` partition needs the driver's library ({error}); {_REMEDY}") from None
