"""Nodes and pods as placement takes them."""
