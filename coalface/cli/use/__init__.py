"""Commands that use a model: faces compared and identified, a model taken elsewhere."""
