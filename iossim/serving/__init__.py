"""Several models on one device (``iossim coschedule``): schedules of all of them, and requests that arrive over time.

A guest: no other room imports this one.
"""
