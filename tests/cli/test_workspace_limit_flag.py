"""``--workspace-limit``: how much memory kernels may need besides their tensors, all that run at the same time."""

from __future__ import annotations

import pytest
from command_line import printed_json, refused

COMMAND = "optimize squeezenet -d v100-sxm2 --scheduler greedy"


def test_a_schedule_within_a_limit(capsys: pytest.CaptureFixture[str]) -> None:
    free = printed_json(capsys, f"{COMMAND} --json")
    tight = printed_json(capsys, f"{COMMAND} --workspace-limit 0B --json")
    assert tight["latency_us"] > free["latency_us"]


def test_a_network_rewritten_under_a_limit(capsys: pytest.CaptureFixture[str]) -> None:
    """Rewriting starts from what the network takes under the limit, and never makes it slower."""
    command = "optimize ios_sample -d v100-sxm2 --workspace-limit 0B --json"
    given = printed_json(capsys, command)
    rewritten = printed_json(capsys, f"{command} --rewrite default --rewrite-budget 3")
    assert rewritten["latency_us"] <= given["latency_us"]
    assert rewritten["options"]["workspace_limit_bytes"] == 0


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ("--workspace-limit 64", "--workspace-limit '64' is not a size; say 64MiB"),
        ("--workspace-limit 1MiB --cost-model random:1", "does not know the workspaces of kernels"),
    ],
)
def test_what_cannot_be(capsys: pytest.CaptureFixture[str], options: str, reason: str) -> None:
    assert reason in refused(capsys, f"{COMMAND} {options}")
