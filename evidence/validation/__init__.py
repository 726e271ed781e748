"""Every quoted figure of accuracy, recomputed."""
