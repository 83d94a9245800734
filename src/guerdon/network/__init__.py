"""The network: one retry policy, and models and data sets of the hub."""
