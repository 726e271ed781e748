"""Compiled functions by the machine's C compiler: ``types`` and ``translation`` make C of them, ``library`` has it
compiled once, loads it and calls it. What cannot be translated, or where there is no compiler, is numba's
(:mod:`iossim.base.compiled`).
"""
