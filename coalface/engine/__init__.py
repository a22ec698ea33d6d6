"""The server's side of a run, and the local transport."""
