"""A divided network over real processes: the outputs of one, and the bytes that were planned."""

import pytest
from command_line import printed_json

from iossim.edge.distributed import distributed
from iossim.edge.runs import run

pytest.importorskip("torch", reason="needs PyTorch; pip install 'iossim[torch]'")
pytestmark = pytest.mark.torch


@pytest.mark.parametrize(("devices", "sync"), [(2, "ring"), (4, "ring"), (3, "server")])
def test_processes_compute_and_send_what_was_planned(devices: int, sync: str) -> None:
    done = run(distributed("squeezenet", "c6678", devices, sync=sync), in_processes=True)
    assert done.error < 1e-5
    assert len(done.sent_bytes) == devices
    assert sum(done.sent_bytes) == done.planned_bytes > 0


def test_from_the_command_line() -> None:
    done = printed_json("dataflow run ios_sample -d c6678 --processes 2 --json")
    assert (done["holds"], done["in_processes"], done["devices"]) == (True, True, 2)
    assert sum(done["sent_bytes"]) == done["planned_bytes"] > 0
