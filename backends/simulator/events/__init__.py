"""The event-driven engine: a whole plan, block by block.

The host issues commands, streams queue kernels, a block scheduler places thread blocks on multiprocessors (SMs), and
resident blocks share what the SM and the device have. :func:`run_plan` and :func:`run_schedule` are the way in.
"""

from iossim.backends.simulator.events.run import run_plan, run_schedule
from iossim.execution.execution import Execution

__all__ = ["Execution", "run_plan", "run_schedule"]
