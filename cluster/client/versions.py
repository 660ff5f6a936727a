"""Comparing resource versions: nothing else in this repository knows that they are numbers.

They are on every API server there is, and Kubernetes promises it since 1.35 (KEP-5504).
"""


def number(version: str) -> int:
    """0 for what is no number, which is how versions begin before anything was read: older than all others."""
    return int(version) if version.isascii() and version.isdigit() else 0


def is_newer(version: str, than: str) -> bool:
    """Whether the first is known to be the later one; never for one that is no number."""
    return number(version) > number(than)


def is_older(version: str, than: str) -> bool:
    """Whether the first is known to be the earlier one; never for one that is no number."""
    return 0 < number(version) < number(than)
