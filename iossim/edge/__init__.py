"""Dataflow on edge devices: operators split over units, and written in the order in which they are read (Xenos)."""
