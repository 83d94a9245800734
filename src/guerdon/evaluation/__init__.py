"""Is this reward model any good? Metrics, probes, pictures, and the statistics behind every claim."""
