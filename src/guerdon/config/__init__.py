"""Configuration: study files, overrides, references, errors with their place, and names of parts."""
