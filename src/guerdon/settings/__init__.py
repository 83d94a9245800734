"""The sections of a configuration as frozen models. Nothing here imports torch or a simulator."""
