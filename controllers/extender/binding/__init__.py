"""Bindings: sent once, few at a time, refused for a deposed leader."""
