"""Reads the authors' released PyTorch checkpoints and maps their names, sizes and words to ours."""
