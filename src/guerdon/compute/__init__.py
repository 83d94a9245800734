"""Tensors and devices: where they are, processes that train together, weights that are finite, random draws."""
