"""The reward server: an engine that batches, wire formats, a guard, and the client."""
