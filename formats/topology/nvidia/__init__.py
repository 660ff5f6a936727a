"""Outputs of ``nvidia-smi``."""
