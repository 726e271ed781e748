"""The lowering of op kinds on GPUs, one file per family, imported when a step of one of its kinds is first lowered."""
