"""Decodes and scores whole splits with a trained captioner."""
