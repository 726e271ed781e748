"""How good the numbers are that iossim ships, and how they were made: recomputed from reference data that users do not
have.

Tested and run by CI, not installed. ``python -m evidence --help`` lists what it does: :mod:`validation` judges every
shipped prediction, :mod:`profiles` fits the profiles that ship, :mod:`concurrency` holds the models of kernels side by
side to measurements, :mod:`rule_generation` finds the graph substitutions that ship as
``iossim/transforms/rewriting/rules``, and :mod:`data` reads the public data sets, one file a format.
"""
