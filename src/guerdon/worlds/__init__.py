"""What a policy acts in: Meta-World and any other Gymnasium environment, many copies at once."""
