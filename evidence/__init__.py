"""Accuracy and origin of the numbers that iossim ships, recomputed from reference data that users do not have.

Tested and run by CI, not installed. ``python -m evidence --help`` lists its commands: :mod:`validation` judges every
shipped prediction, :mod:`profiles` fits the profiles that ship, :mod:`concurrency` compares the models of concurrent
kernels with measurements, :mod:`rule_generation` finds the graph substitutions that ship as
``iossim/transforms/rewriting/rules``, and :mod:`data` reads the public data sets, one module per format.
"""
