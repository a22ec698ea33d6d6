"""Means that survive liars: rules over every single reply, in place of a weighted mean."""
