"""What left a party, kept in a ledger."""
