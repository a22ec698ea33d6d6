"""What a researcher types in Python: faces in, runs and models out."""
