"""Sums of parties' vectors of which the server learns the sum alone (Bonawitz et al. 2017, Bell et al. 2020)."""
