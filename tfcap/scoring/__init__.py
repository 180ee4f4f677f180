"""Captions and probabilities of a whole split under a trained captioner."""
