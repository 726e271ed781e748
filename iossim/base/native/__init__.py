"""Compiled functions by the machine's C compiler: ``types`` and ``translation`` translate them to C, ``library`` has it
compiled once, loads it and calls it. Untranslatable functions, and machines without a compiler, use numba
(:mod:`iossim.base.compiled`).
"""
