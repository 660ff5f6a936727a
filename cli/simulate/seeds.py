"""Seeds as options name them."""

import re

from kopt.cli.errors import usage_error

MOST_SEEDS = 1000


def read_seeds(text: str) -> list[int]:
    """``42-51`` or ``1,2,7``; anything else is wrong usage."""
    result: list[int] = []
    for part in text.split(","):
        match = re.fullmatch(r"\s*(\d{1,9})(?:-(\d{1,9}))?\s*", part)
        first, last = (int(match[1]), int(match[2] or match[1])) if match else (1, 0)
        if not match or last < first or last - first >= MOST_SEEDS:
            usage_error(f"{text!r} are not seeds; write them like 42-51 or 1,2,7, {MOST_SEEDS} at most", "--seeds")
        result += range(first, last + 1)
    if len(result) > MOST_SEEDS:
        usage_error(f"{len(result)} seeds are more than {MOST_SEEDS}", "--seeds")
    return list(dict.fromkeys(result))
