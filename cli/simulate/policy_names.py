"""Policies as options name them."""

from collections.abc import Collection

from kopt.cli.errors import usage_error


def read_policies(wanted: list[str] | None, available: Collection[str]) -> list[str]:
    """``kopt`` by default, every one for ``all``; a name that is not known is wrong usage."""
    names = list(dict.fromkeys(part for text in wanted or ["kopt"] for part in text.split(",")))
    if names == ["all"]:
        return list(available)
    if unknown := [name for name in names if name not in available]:
        usage_error(f"no policy {unknown[0]!r}; there are {', '.join(available)}, or all", "--policy")
    return names
