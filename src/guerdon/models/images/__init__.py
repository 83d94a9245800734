"""Reward models of images and states."""
