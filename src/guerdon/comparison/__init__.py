"""Compare reward settings: run arms x seeds x tasks, and report them with intervals and tests."""
