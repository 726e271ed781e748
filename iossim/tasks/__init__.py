"""Questions about existing schedules: why their stages are as they are, how two differ, how they run."""
