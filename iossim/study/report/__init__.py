"""The report of a study: one HTML file, and the same figures as pictures."""
