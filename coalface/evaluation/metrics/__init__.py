"""Metrics: pure functions over scores and embeddings."""
