"""Outputs that describe the network between nodes."""
