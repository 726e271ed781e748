"""Plans of dataflow timed event by event (SimPy), and run by NumPy in the memories that they name."""
