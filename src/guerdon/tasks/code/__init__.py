"""Programs as answers: the sandbox, tests of programs, and how they are written in data sets."""
