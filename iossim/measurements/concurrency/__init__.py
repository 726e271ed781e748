"""Tables of kernels that were measured side by side, in the shared folder ``concurrency``."""
