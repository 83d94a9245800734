"""One loop for text and robots: rollout, score, shape, advantages, update."""
