"""Completions of language models: HTTP endpoints of others, or a policy in this process."""
