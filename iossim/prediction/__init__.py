"""Predictions by a profile for operators, networks, stages and schedules, with their uncertainty.

The contract: each prediction has an interval of nine in ten expected measurements, and reads only the profile: its
parameters with their spread, and the bands of its residuals.
"""
