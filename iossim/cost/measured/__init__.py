"""Prices by measurement: the cost model, the store of all that was measured, and what a profile measures."""
