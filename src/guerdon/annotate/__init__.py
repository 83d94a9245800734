"""People judge episodes, responses, pairs and steps in the browser, for train, evaluate and audit."""
