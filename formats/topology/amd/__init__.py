"""Outputs of ``rocm-smi`` and ``amd-smi``."""
