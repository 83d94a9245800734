"""Reward models as sources of reward of an RL run: scoring, shaping, refitting, failures, warnings."""
