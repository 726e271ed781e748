"""What a profile says of a published network that it was fitted to, had it never seen a figure of it.

A prediction of a figure that took part in a fit is *in-sample*: it says how well the model can be bent to it. The profile
holds, for each such network, the parameters of a fit without it; what they predict is what may be believed of others.
"""

from __future__ import annotations

from iossim.hardware.profile import DeviceProfile, with_values


def without_network(profile: DeviceProfile, model: str) -> DeviceProfile | None:
    """The profile fitted without the figures of ``model``; None where they took no part in its fit.

    Its resamples are as far from it as the whole fit's are from that.
    """
    values = profile.provenance.left_out.get(model)
    if values is None:
        return None
    own = profile.parameter_values
    bounds = {
        parameter.name: (parameter.lower, parameter.upper)
        for space in (profile.device_kind.kernels, profile.device_kind.concurrency, profile.device_kind.launches)
        for parameter in space.parameters
    }
    resamples = {}
    for name, several in profile.provenance.resamples.items():
        low, high = bounds.get(name, (0.0, float("inf")))
        shift = values.get(name, own[name]) - own[name]
        resamples[name] = [min(max(value + shift, low), high) for value in several]
    provenance = profile.provenance.model_copy(update={"resamples": resamples, "left_out": {}})
    return with_values(profile, values).model_copy(update={"provenance": provenance})
