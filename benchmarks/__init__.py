"""Figures, measured beside their baselines in one run: ``make bench``.

Each module has a ``main() -> int`` that prints its tables as Markdown; nothing here is a test.
"""
