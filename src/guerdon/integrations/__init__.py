"""Guerdon's reward models inside other trainers: one module per library, which imports that library."""
