"""Faces drawn from a seed."""
