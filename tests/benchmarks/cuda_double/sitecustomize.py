"""The double of CUDA under backend ``cupy_cudnn``, in every Python process that has this folder on its path.

Python imports a module of this name as it starts, so that the sections of ``gpu_report.py``, which are processes of their own,
run as on a GPU: nothing of them knows of it. ``CUDA_DOUBLE`` says which fault the device has, ``nan@networks`` in one section
alone; nothing happens without it.
"""

import os
import sys

if "CUDA_DOUBLE" in os.environ:
    from faulty_backend import create

    from iossim.backends.cupy_cudnn import backend, candidate_timing
    from iossim.cost.measured import stage_plans

    _kind, _, _section = os.environ["CUDA_DOUBLE"].partition("@")
    if not any(argument.startswith(_section) for argument in sys.orig_argv):
        _kind = "none"
    backend.create = lambda precision, engine, options: create(precision, engine, options, _kind)
    backend.missing = lambda: ""
    if _kind != "slow":  # virtual times are exact: one copy says all
        candidate_timing.COPIES = candidate_timing.ROUNDS = candidate_timing.FINAL_ROUNDS = 1
    if _kind != "idle":  # NumPy takes seconds for the larger ones
        stage_plans.BOUNDARY_CHANNELS = (1, 2)
