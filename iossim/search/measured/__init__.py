"""The measured search: the best schedule at measured prices, for a fraction of the measurements.

``transitions`` enumerates a block's states and stages once, ``stage_classes`` finds which of all stages are one
measurement, ``planner`` finds the best path at any prices, ``correction`` learns from what was measured, ``search``
is the loop.
"""
