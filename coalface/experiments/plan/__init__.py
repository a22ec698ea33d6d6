"""What a recipe would send, take and promise, before a run."""
