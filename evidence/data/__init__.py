"""Public data sets: where they are looked for, and a file for each of their formats."""
