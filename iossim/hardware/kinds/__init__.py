"""The kinds of devices, one file each with a ``KIND``, named like the kind, and its tables in ``KIND.yaml``."""
