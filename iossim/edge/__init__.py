"""Dataflow on edge devices: operators split over units, and written in the order in which they are read (Xenos).

Of :mod:`iossim.execution` dataflow uses the boxes, the inputs and how outputs are compared. The rest is its own,
since it answers other questions:

- Plans. An execution plan is commands on queues that events order. An edge plan has a barrier behind each stage and
  moves every byte itself, so that it says for each unit what comes from which address; commands for it would be a
  million.
- Memory. An arena holds what does not interfere by happens-before, at any size. A feature map here has a place in the
  shared memory or, where that is full, outside; stages are in order, so that lifetimes are ranges of stages, and
  layouts have halos.
- Executors. Kernels of an execution plan compute whole values; units compute boxes from parameters in their own
  memories.
- Several devices. An execution plan copies whole values between devices; here every device has boxes of a value, and
  halos are sent.
"""
