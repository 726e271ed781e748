"""What is asked of schedules that are there: why each stage is as it is, how two differ, how they compare when they run."""
