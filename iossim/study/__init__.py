"""What-if studies (``iossim study``): a ``scenario`` expands into ``points``, ``sweep`` has workers ``evaluate`` them,
``answers`` and ``claims`` answer each ``question`` from the rows (a ``table``), and ``report`` draws the page.

A guest: no other room imports this one. Axes and figures of other devices come from a ``study_kind``.
"""
