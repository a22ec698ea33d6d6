"""Readers of the field's forms of image sets and of the lists that come with them."""
