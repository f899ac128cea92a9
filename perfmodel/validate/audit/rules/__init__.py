"""Kinds of checks, one file a subject; each is a description in a claims file and the rule that judges it."""
