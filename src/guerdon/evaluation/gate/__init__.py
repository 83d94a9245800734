"""The gate: a forecast from measurements before any RL."""
