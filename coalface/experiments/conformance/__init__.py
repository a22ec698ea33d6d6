"""What every method must do, as checks on tiny federations: `coalface check-method` and this repository's own tests."""
