"""Findings about the rewards of a run that is already there, of any trainer."""
