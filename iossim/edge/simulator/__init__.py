"""Edge devices: plans of dataflow timed event by event (SimPy), and run by NumPy in the memories and layouts that they name."""
