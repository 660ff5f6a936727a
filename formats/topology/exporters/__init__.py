"""Metrics and documents of exporters and platforms that describe a node."""
