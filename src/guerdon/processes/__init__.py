"""Processes of this machine: start and end, progress, helpers with a time limit, queues of calls."""
