"""A trained model in use: images embedded, two compared, people enrolled and identified."""
