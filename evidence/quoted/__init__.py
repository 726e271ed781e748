"""Figures that documents quote: ``sections`` computes them, ``figures.json`` stores them, ``texts`` words them, and
``blocks`` writes them between the markers of every document that quotes them.
"""
