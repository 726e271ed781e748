"""What is asked of schedules that are there: why stages are as they are, how two differ, how they run."""
