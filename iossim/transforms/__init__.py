"""Changes of a network for its schedule: graph substitutions, joins, micro-batches, and all of them jointly."""
