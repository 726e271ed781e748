"""Predictions judged by measurements of operators, stages and whole networks (:func:`~.validate.validate`).

The contract: operators are judged on held-out shapes, and whatever cannot be judged is left out with a note.
"""
