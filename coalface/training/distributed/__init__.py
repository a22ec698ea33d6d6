"""One party's training over several processes."""
