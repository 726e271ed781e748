"""The algorithms that a library can be told to use, and the candidates of each."""

from __future__ import annotations

from iossim.hardware.lowering.kernel import Candidate
from iossim.hardware.lowering.step import Step
from iossim.hardware.lowering.target import reading_more, step_candidates, target_of
from iossim.hardware.profile import DeviceProfile


def step_algorithms(step: Step, profile: DeviceProfile) -> dict[str, tuple[Candidate, ...]]:
    """The candidates of a step by each algorithm that a library can be told to use on the device.

    If the library does not name its algorithms, each candidate is one. Raises as :func:`step_candidates`.
    """
    sort = target_of(profile).algorithms.get(step.op.kind)
    if sort is None:
        return {one.algorithm: (one,) for one in step_candidates(step, profile)}
    known = {name: [one for one in some if one.runs_on(profile.architecture)] for name, some in sort(step).items()}
    return {str(name): reading_more(candidates, step) for name, candidates in known.items() if candidates}
