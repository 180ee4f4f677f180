"""Computes vectors of images, and finds the nearest ones exactly or through a graph."""
