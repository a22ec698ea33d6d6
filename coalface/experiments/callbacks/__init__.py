"""Callbacks: observers of the rounds of a run."""
