"""What changes a network for its schedule: graph substitutions, and batches in parts."""
