"""What a profile says of operators, networks, stages and schedules, and how far off that may be.

The contract: whatever is predicted comes with an interval in which nine of ten measurements are expected, and a
prediction reads the profile only: its parameters, the bands of its residuals, its bootstrapped parameter vectors.
"""
