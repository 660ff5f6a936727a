"""Tables of figures in Markdown."""

from collections.abc import Iterable, Sequence


def markdown(head: Sequence[str], rows: Iterable[Iterable[str]]) -> str:
    """One line per row, under the head."""
    lines: list[Iterable[str]] = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)
