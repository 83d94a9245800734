"""Vision-language models as reward models."""
