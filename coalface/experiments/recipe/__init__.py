"""Recipes: YAML at the door, checked and resolved."""
