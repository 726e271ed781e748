"""Scheduling problems of blocks, stages in batches, and schedules as data: of stages, or of streams."""
