"""Micro-batches: a convolution's batch in parts, so that a faster algorithm fits the workspace."""
