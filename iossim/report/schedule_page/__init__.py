"""A schedule as one page: timeline, graph, stages and why they are as they are; offline, and without any library."""
