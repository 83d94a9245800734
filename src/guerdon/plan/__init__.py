"""What a study will take: calls, tokens, dollars, memory, disk and time."""
