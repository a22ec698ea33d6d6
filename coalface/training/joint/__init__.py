"""What clients of FedFR with public people, and of its kin, train on and with."""
