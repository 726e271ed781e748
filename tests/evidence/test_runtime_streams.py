"""What sessions cost: what the rows say is what a CPU's kind has."""

from __future__ import annotations

import pytest

from evidence.profiles.runtime_streams import session_costs
from iossim.hardware.kinds.cpu import KIND


def test_the_defaults_are_what_the_rows_say() -> None:
    found = session_costs()
    costs, parameters = KIND.engines["cpu"].values, KIND.parameters["cpu"]
    assert costs.session_gap_factor == pytest.approx(found.node_us / parameters.kernel_gap_us, rel=0.1)
    assert costs.notification_us == pytest.approx(found.notification_us, rel=0.1)
    assert costs.starved_notification_us == pytest.approx(found.starved_us, rel=0.1)
    low, high = found.starved_quartiles_us
    assert low < costs.starved_notification_us < high
