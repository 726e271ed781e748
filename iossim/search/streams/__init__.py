"""Streams without barriers: the best stages, searched on (:mod:`iossim.search.ios`).

``search`` goes part by part, ``moves`` draws the changes of a local search, and ``bounds`` says what no streams take
less than.
"""
