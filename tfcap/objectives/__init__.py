"""Training objectives and rewards, as functions of tensors."""
