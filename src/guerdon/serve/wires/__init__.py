"""Wire formats of the reward server."""
