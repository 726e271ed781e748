"""The measured search: the best schedule at measured prices, for a fraction of the measurements.

``transitions`` enumerates a block's states and stages once, ``stage_classes`` finds the stages that are one
measurement, ``planner`` the best path at any prices; ``correction`` learns from measurements, ``search`` is the loop.
"""
