"""Predictions judged by measurements of operators, stages and whole networks (:func:`~.validate.validate`).

The contract: operators are judged on shapes that no fit saw, and what cannot be judged is left out with a note.
"""
