"""How wrong predictions are: every figure of accuracy that is quoted, recomputed from data."""
