"""Fitting a reward model or a first policy offline."""
