"""Dataflow on edge devices: operators are split over units, and their outputs laid out in reading order (Xenos).

Dataflow shares boxes, inputs and the comparison of outputs with :mod:`iossim.execution`. The rest is its own, since it
answers other questions:

- Plans. An execution plan is commands on queues that events order. An edge plan has a barrier after each stage and
  moves every byte itself, so that it gives each unit's transfers with their addresses; as commands they would be a
  million.
- Memory. An arena holds what does not interfere by happens-before, at any size. A feature map here has a place in the
  shared memory or, where that is full, outside; stages are in order, so that lifetimes are ranges of stages, and
  layouts have halos.
- Executors. Kernels of an execution plan compute whole values; units compute boxes from parameters in their own
  memories.
- Several devices. An execution plan copies whole values between devices; here every device has boxes of a value, and
  halos are sent.

A guest: no other room imports this one. Its kind of study (``dataflow_study``) is found by :mod:`iossim.study`.
"""
