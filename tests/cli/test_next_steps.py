"""The last lines of ``iossim optimize`` on a terminal, and schedules under ``--workspace-limit``."""

from __future__ import annotations

import os
import pty
import subprocess
import sys
from pathlib import Path

import pytest
from command_line import printed_json

from iossim.cli.main import build_command
from iossim.cli.optimize import next_steps


@pytest.mark.parametrize("out", [None, Path("a folder")])
@pytest.mark.parametrize("engine", ["paper", "graph", ""])
def test_three_lines_that_fit_a_terminal(out: Path | None, engine: str) -> None:
    lines = next_steps(out, engine, has_page=True)
    assert len(lines) == 3
    assert all(len(line) <= 80 for line in lines)
    assert f"--engine {'paper' if engine == 'graph' else 'graph'}" in lines[1]
    if out is not None:
        assert "'a folder/index.html'" in lines[0]
        assert "'a folder/schedule.json'" in lines[2]
        command = lines[2].split()[1]
        assert command in build_command().commands


def test_only_a_terminal_is_told(tmp_path: Path) -> None:
    command = [
        sys.executable,
        "-m",
        "iossim",
        "optimize",
        "ios_sample",
        "-d",
        "t4",
        "--no-trace",
        "--out",
        str(tmp_path),
    ]
    piped = subprocess.run(command, capture_output=True, text=True, check=True)
    assert "Next:" not in piped.stdout
    terminal, end = pty.openpty()
    subprocess.run(command, stdout=end, stderr=subprocess.DEVNULL, check=True)
    os.close(end)
    said = b""
    try:
        while part := os.read(terminal, 65536):
            said += part
    except OSError:  # Linux says so at the end of what a terminal's other side wrote
        pass
    os.close(terminal)
    lines = said.decode().splitlines()
    (first,) = [place for place, line in enumerate(lines) if line.startswith(f"Next: open {tmp_path / 'index.html'}")]
    assert [line[:6] for line in lines[first + 1 : first + 3]] == [" " * 6] * 2


COMMAND = "optimize squeezenet -d v100-sxm2 --scheduler greedy"


def test_a_schedule_within_a_limit() -> None:
    free = printed_json(f"{COMMAND} --json")
    tight = printed_json(f"{COMMAND} --workspace-limit 0B --json")
    assert tight["latency_us"] > free["latency_us"]


def test_a_network_rewritten_under_a_limit() -> None:
    """Rewriting starts from what the network takes under the limit, and never makes it slower."""
    command = "optimize ios_sample -d v100-sxm2 --workspace-limit 0B --json"
    given = printed_json(command)
    rewritten = printed_json(f"{command} --rewrite default --rewrite-budget 3")
    assert rewritten["latency_us"] <= given["latency_us"]
    assert rewritten["options"]["workspace_limit_bytes"] == 0
