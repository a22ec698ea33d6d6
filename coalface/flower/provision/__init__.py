"""Kits of a federation: certificates, scripts and papers for every part of it."""
