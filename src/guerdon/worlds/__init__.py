"""What a policy acts in: Meta-World, LIBERO and any other Gymnasium environment, many copies at once."""
