"""Policies of robots: MLP, CNN, heads, encoders, scripted experts."""
