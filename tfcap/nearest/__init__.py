"""Vectors of images, and the search for the nearest: exact, or through a graph of neighbours."""
