"""What `tfcap.benchmark` times: the work, the clock, and how costs grow."""
