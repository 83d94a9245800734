"""Language models as policies, and their generation."""
