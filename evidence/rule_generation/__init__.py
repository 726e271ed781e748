"""Rules that were found rather than written: graphs of a vocabulary are enumerated, and equal ones are matched.

:mod:`vocabulary` defines ops and inputs, :mod:`enumeration` makes all graphs up to a size with their
:mod:`fingerprints`, :mod:`candidates` matches them, :mod:`equations` represents the result as values, :mod:`derivation`
finds which follow from others, and :mod:`generate` runs all of it.
"""
