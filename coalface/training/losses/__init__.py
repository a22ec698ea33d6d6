"""Losses over embeddings, class embeddings and labels."""
