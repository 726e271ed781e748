"""Plans: schedules as launches, copies and waits on streams, with memory and races; the contract of backends."""
