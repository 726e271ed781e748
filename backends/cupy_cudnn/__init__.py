"""Runs plans on an NVIDIA GPU: CuPy for memory, streams, graphs and own kernels, cuDNN for convolutions."""
