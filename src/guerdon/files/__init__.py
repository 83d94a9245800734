"""Files on disk: written whole or not at all, append-only logs, and what a result was made with."""
