"""Where the parts of a run work: in this process, or as actors of a Ray cluster."""
