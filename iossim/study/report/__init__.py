"""The report of a study: one HTML file, the same figures as pictures, and as tables of the terminal."""
