"""Reward models of text."""
