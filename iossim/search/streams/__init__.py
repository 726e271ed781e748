"""Streams without barriers: the best stages, searched on (:mod:`iossim.search.ios`).

``search`` goes part by part, ``from_stages`` is the scheduler, and ``bounds`` says what no streams take less than.
"""
