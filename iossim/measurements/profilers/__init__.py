"""Readers of profilers' recordings: one per profiler, yielding its kernels with all recorded properties.

A profile has two uses. ``iossim corun`` runs its kernels concurrently (:func:`~.kernels.side_by_side`): it needs the
stream, grid and duration of each. ``iossim profile-report`` matches them with the layers of a model (``layer_times``).
"""

from __future__ import annotations

from iossim.measurements.profilers import pytorch_trace
from iossim.measurements.profilers.kernels import Profile
from iossim.measurements.profilers.nsight import compute_profile, is_compute_header, is_systems_header, systems_profile

#: A tool or a program may print this many lines before the header; a trace is recognised by its initial letters.
_LINES_BEFORE, _HEAD = 200, 100_000


def profile_of(text: str) -> Profile | None:
    """The kernels of a profile; None for text that is not one. Raises CsvError for a profile that cannot be read."""
    if pytorch_trace.is_chrome_trace(text[:_HEAD]):
        return pytorch_trace.profile(text)
    for number, line in enumerate(text.splitlines()[:_LINES_BEFORE]):
        if is_systems_header(line):
            return systems_profile(text, number)
        if is_compute_header(line):
            return compute_profile(text)
    return None
