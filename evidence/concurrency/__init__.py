"""Kernels that ran side by side: the tables of the shared folder ``concurrency``, and what models of them are held
to.
"""
