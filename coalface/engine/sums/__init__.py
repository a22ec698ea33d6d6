"""Sums of replies that are more than running means."""
