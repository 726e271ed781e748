"""Recordings of profilers, and kernels that no network has: kernels side by side (``iossim corun``), and profiled
layers beside predictions (``iossim profile-report``). The readers of recordings are
:mod:`iossim.measurements.profilers`.

A guest: no other room imports this one.
"""
