"""`guerdon search`: answers chosen by a reward model."""
