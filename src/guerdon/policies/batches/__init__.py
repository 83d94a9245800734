"""Token ids and batches: text to ids, steps, packing, shared prompts, passes, precision."""
