"""Pretrained weights: what transformers and peft read and write."""
