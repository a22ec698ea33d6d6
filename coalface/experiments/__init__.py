"""Experiments: from a recipe to a run folder, and what is made of run folders."""
