"""Sweeps: a grid of recipes into one table and page."""
