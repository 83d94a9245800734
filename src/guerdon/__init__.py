"""Guerdon: the whole life of a reward model, for language models that reason and for robots that move."""

__version__ = "0.1.0"
