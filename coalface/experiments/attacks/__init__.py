"""Attacks on runs: what somebody can do with what they see of one, measured beside chance and beside defences."""
