"""Sets of face images: what they are, how they are read, paired, partitioned and drawn."""
