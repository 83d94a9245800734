"""Where labels of steps come from: judges, continuations, checked answers; what they cost, and what they pay."""
