"""Collect episodes: a policy in a world, written in the background."""
