"""How the command line spells what messages name.

Below the command line a message names what was given as Python does, in backquotes: ``give `max_groups` 8``. A flag is
its name with dashes, but for those that are called otherwise.
"""

from __future__ import annotations

import re

#: By name of a parameter or field, the flags that are spelled otherwise.
FLAGS = {
    "address": "--scheduler",  # of a Dask cluster
    "board_power_w": "--power-w",
    "boost_clock_ghz": "--clock-ghz",
    "dimensions": "--dim",
    "dram_bandwidth_gbps": "--dram-gbps",
    "fp32_lanes_per_sm": "--lanes",
    "passes": "--pass",
    "shapes": "--shape",
    "sm_count": "--sm",
}
_NAME = re.compile(r"`([a-z][a-z0-9_]*)`")


def with_flags(message: str) -> str:
    """The message with flags in place of names: ``give --max-groups 8``."""
    return _NAME.sub(lambda name: FLAGS.get(name[1], "--" + name[1].replace("_", "-")), message)
