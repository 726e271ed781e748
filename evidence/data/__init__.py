"""Public data sets: their locations, and one module for each of their formats."""
