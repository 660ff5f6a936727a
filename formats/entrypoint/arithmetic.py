"""Whole-number arithmetic of shells, ``$((16 / n))`` and ``expr 16 / n``, without a shell."""

import re

_TOKEN = re.compile(r"\s*(?:(\d{1,18})|(.))", re.DOTALL)
_MOST_CHARACTERS = 200
_ORDER = {"+": 1, "-": 1, "*": 2, "/": 2, "%": 2}


def whole_number(text: str) -> int | None:
    """The value of ``+ - * / %`` and brackets between whole numbers; None for anything else, and for a zero divisor."""
    if len(text) > _MOST_CHARACTERS:
        return None
    tokens: list[int | str] = [int(number) if number else sign for number, sign in _TOKEN.findall(text.strip())]
    try:
        value, rest = _sum(tokens, 0, 1)
    except (IndexError, ValueError, ZeroDivisionError):
        return None
    return value if rest == len(tokens) else None


def _sum(tokens: list[int | str], at: int, least: int) -> tuple[int, int]:
    """Precedence climbing: the value of what binds at least as strongly as ``least``, and where it ends."""
    value, at = _operand(tokens, at)
    while at < len(tokens) and _ORDER.get(str(tokens[at]), 0) >= least:
        sign = str(tokens[at])
        other, at = _sum(tokens, at + 1, _ORDER[sign] + 1)
        value = _applied(sign, value, other)
    return value, at


def _operand(tokens: list[int | str], at: int) -> tuple[int, int]:
    token = tokens[at]
    if isinstance(token, int):
        return token, at + 1
    if token == "-":
        value, at = _operand(tokens, at + 1)
        return -value, at
    if token != "(":
        raise ValueError(token)
    value, at = _sum(tokens, at + 1, 1)
    if tokens[at] != ")":
        raise ValueError(tokens[at])
    return value, at + 1


def _applied(sign: str, left: int, right: int) -> int:
    if sign in "/%":
        # Shells cut towards zero, as C does.
        quotient = abs(left) // abs(right) * (1 if (left < 0) == (right < 0) else -1)
        return quotient if sign == "/" else left - quotient * right
    return left + right if sign == "+" else left - right if sign == "-" else left * right
