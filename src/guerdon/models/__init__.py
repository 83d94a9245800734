"""Reward models, a file each, and what they share: preprocessing, checkpoints, online refitting."""
