"""Language models as judges, and rubrics."""
