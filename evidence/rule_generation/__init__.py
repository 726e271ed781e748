"""Rules found, not written: graphs of a vocabulary are enumerated, and those that compute the same are matched.

:mod:`vocabulary` says which ops and inputs, :mod:`enumeration` makes all graphs up to a size with their
:mod:`fingerprints`, :mod:`candidates` matches them, :mod:`equations` has what they say as values, :mod:`derivation`
tells which follow from others, and :mod:`generate` does it all.
"""
