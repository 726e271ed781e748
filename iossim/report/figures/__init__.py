"""Figures of all commands: data and Vega-Lite specifications, and the pictures that are drawn of them."""
