"""Clustering by first neighbours, and pseudo labels from clusters."""
