"""Local training: what methods share of it."""
