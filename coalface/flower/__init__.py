"""Runs over Flower: what needs the extra `flower`."""
