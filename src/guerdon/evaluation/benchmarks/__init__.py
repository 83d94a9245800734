"""Benchmarks of reward models of text: preferences, steps, best-of-n, attacks, labels of people."""
