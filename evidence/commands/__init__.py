"""The commands of ``python -m evidence``, a file each, found by looking."""
