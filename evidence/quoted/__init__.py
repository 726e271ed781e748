"""Figures that documents quote: ``sections`` computes them, ``figures.json`` keeps them, ``texts`` words them, and
``blocks`` writes them between the markers of whatever document has a place for them.
"""
