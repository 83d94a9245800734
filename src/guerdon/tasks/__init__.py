"""What a language model is given to do, and how its answers are verified: prompts, answers, code, reasoning formats."""
