"""JSON schema of what ``iossim microbatch`` prints."""

from __future__ import annotations

from iossim.microbatching.division import POLICIES
from iossim.microbatching.network_kernels import BACKWARD_DATA, BACKWARD_FILTER, FORWARD
from iossim.report.schemas import COUNT, SIZE, TEXT, TIME_US, Schema, described, list_of, record


def _microbatch() -> Schema:
    """Output of ``iossim microbatch --json``: each kernel with its micro-batches, which run one after another."""
    limit: Schema = {"type": ["integer", "null"], "minimum": 0}
    whole_us: Schema = {
        "type": ["number", "null"],
        "minimum": 0,
        "description": "undivided under the same limits; null where that cannot be",
    }
    part = record(micro_batch=COUNT, count=COUNT, algorithm=TEXT)
    kernel = record(
        layer=TEXT,
        **{"pass": {"enum": [FORWARD, BACKWARD_DATA, BACKWARD_FILTER]}},
        configuration=list_of(part) | {"minItems": 1},
        time_us=TIME_US,
        undivided_us=whole_us,
        workspace_bytes=SIZE,
    )
    return described(_microbatch) | record(
        policy={"enum": list(POLICIES)},
        workspace_limit_bytes={**limit, "description": "of each kernel"},
        total_workspace_limit_bytes={**limit, "description": "of all kernels"},
        time_us=TIME_US,
        undivided_us=whole_us,
        lower_bound_us={**TIME_US, "description": "no choice takes less"},
        proved={"type": "boolean"},
        workspace_bytes=SIZE,
        memory_limit_bytes={**limit, "description": "of activations and workspaces in one arena"},
        arena_bytes={**limit, "description": "that arena; null without such a limit"},
        kernels=list_of(kernel),
    )


SCHEMA = ("Micro-batches, as iossim microbatch prints them (JSON)", _microbatch)
