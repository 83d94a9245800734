"""What a policy acts in: Meta-World, LIBERO, ManiSkill and any other Gymnasium environment, many copies at once."""
