"""Training under official.core and orbit: tasks, optimizers, the trainer, and its summaries."""

MODES = ("train", "eval", "train_and_eval", "continuous_eval")
