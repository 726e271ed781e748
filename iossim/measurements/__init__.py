"""Measured operators, stages and networks: what they are of, and the files that they come in."""
