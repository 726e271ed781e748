"""Prices by measurement: the cost model, the store of all measurements, and the profiling of networks."""
