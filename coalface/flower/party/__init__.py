"""A party's own processes beside its SuperNode."""
