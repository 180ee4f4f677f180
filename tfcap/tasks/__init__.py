"""Training objectives under official.core."""
