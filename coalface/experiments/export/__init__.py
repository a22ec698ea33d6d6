"""A model taken elsewhere: a client's own with its gallery, and any model in the formats of others."""
