"""The commands of ``python -m evidence``, one module each, found by import."""
