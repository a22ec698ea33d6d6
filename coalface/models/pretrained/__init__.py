"""Networks that others trained: their weights, and what they expect of their input."""
