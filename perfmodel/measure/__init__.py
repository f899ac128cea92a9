"""Measurements: tables of our own, checks against physics, and importers of what other tools write."""
