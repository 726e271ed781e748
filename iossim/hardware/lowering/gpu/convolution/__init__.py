"""The algorithms of a convolution, one file each."""
