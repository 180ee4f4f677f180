"""Training: the tasks, the optimizers, the loop, and what it shows."""

MODES = ("train", "eval", "train_and_eval", "continuous_eval")
