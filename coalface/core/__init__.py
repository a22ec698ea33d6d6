"""The words in which methods are written, their bytes, and what all floors above share."""
