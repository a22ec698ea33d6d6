"""Evaluation of models: during a run, after it, and of finished models."""
