"""What-if studies (``iossim study``): scenarios run as a sweep, answers to their questions, and a report.

``scenario`` and its file expand into ``points``; ``sweep`` has workers ``evaluate`` them and keeps a ``journal``, from
which results are made; ``answers`` and ``claims`` answer a ``question`` from the rows; ``report`` draws the page. Axes
(``axes``) and figures (``metrics``) are declared once each, those of other devices by a ``study_kind``.

A guest: no other room imports this one.
"""
