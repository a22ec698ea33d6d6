"""Training on a labelled source and unlabelled targets at one party."""
