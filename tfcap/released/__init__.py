"""The authors' released PyTorch checkpoints: reading them, their names, sizes and words."""
