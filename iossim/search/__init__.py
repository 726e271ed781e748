"""Schedulers: the exact search of IOS and its bounds, greedy and sequential, streams, the measured search."""
