"""Looking through image sets, and converting them."""
