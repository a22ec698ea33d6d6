"""Runs compared with the first of them: a table, its page, and the intervals of their differences."""
