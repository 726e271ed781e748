"""The commands of ``python -m evidence``, found by import."""
