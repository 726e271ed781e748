"""What a calibrated profile says of operators and schedules, and how far that may be off."""
