"""Coalface: face recognition models trained over parties that may not pool their face images."""

__version__ = "0.1.0"
