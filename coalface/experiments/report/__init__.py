"""Report pages and tables of run folders."""
