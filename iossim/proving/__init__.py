"""Verification of rules of substitution, by trials on random tensors and proofs from axioms; ``iossim rules``.

``sampling`` draws shapes and attributes (``proposals``) that a rule takes, ``refute`` evaluates both sides there.
``prover`` builds ``terms`` of both sides, and matches ``axioms`` against them up to ``congruence``; what conditions say
of shapes (``symbolic``, ``symbolic_types``, ``symbolic_expressions``) z3 decides. ``verify`` puts both together, and
looks for the conditions that a rule lacks; ``verdict_checker`` says what a verdict rests on.

A guest: no other room imports this one. The searches of :mod:`iossim.transforms.rewriting` use the verdicts that ship.
"""
