"""Figures of all commands: data, Vega-Lite specifications, and the pictures drawn from them."""
