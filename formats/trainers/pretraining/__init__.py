"""Trainers of repositories that pre-train a model of their own."""
