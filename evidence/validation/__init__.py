"""Every figure of accuracy that is quoted, recomputed."""
