"""Predictions by a profile for operators, networks, stages and schedules, with their uncertainty.

The contract: each prediction has an interval of nine in ten expected measurements, and reads only the profile: its
parameters, the bands of its residuals, its bootstrapped parameter vectors.
"""
