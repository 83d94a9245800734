"""Guerdon's reward models inside other trainers: one module per library, which imports that library.

A library that has no place for a missing reward gets a `RewardFailure` raised.
"""

from guerdon.errors import RewardFailure as RewardFailure
