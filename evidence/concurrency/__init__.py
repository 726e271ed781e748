"""Kernels that ran concurrently: the tables of the shared folder ``concurrency``, and the models compared with them."""
