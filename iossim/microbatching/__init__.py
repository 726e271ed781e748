"""Micro-batches: a batch in parts, so that a faster algorithm fits the workspace (u-cuDNN), or parts run concurrently.

- *Kernels.* ``network_kernels`` lists the convolutions of a network in up to three directions, ``division`` divides
  their batches under limits on workspace, ``kernels_under_limits`` also beside activations in one arena.
  ``convolutions_in_micro_batches`` times them, and makes the result a schedule that runs.
- *Networks.* ``divided_blocks`` makes a network whose blocks or units run in micro-batches (``divisible`` says which
  may), ``micro_batches_transform`` chooses them with the schedule: ``--micro-batch``, a layer of the joint search.
- *Gradients.* ``training_pass`` makes one graph of a network and its gradients, by the rules of ``gradients`` and
  ``elementwise_gradients``: ``--training``.

A guest: no other room imports this one. Modules ``NAME_PART`` are found by their part.
"""
