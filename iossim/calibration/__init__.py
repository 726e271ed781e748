"""Measured kernels: the operators that they are of, the files that they come in, and what is made of them."""
