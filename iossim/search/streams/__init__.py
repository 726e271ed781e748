"""Streams without barriers: the best stages, searched on (:mod:`iossim.search.ios`).

``search`` goes part by part, ``exact`` solves small parts by branch and bound, ``moves`` draws the changes of a local
search, and ``bounds`` says what no streams take less than.
"""
