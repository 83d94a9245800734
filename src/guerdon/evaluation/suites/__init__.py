"""`guerdon evaluate` of a study: the evaluation of reward models of text and of robots."""
