"""Measurements of a running system."""
