"""The algorithms that a convolution may run as, a file each."""
