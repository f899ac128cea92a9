"""Counts of flop, bytes and messages, and memory: no seconds here."""
