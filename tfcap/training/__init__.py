"""Training under official.core and orbit: tasks, optimizers, the trainer, and its summaries."""
