"""What hears of rounds as a run goes."""
