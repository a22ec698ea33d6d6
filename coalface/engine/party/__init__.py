"""A party's side of a run: steps, commits, encryption."""
