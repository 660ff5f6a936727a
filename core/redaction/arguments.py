"""Secrets in argument lists."""

import re
from collections.abc import Sequence

from kopt.core.redaction.options import (
    HEADERS,
    PATHS_FOLLOW,
    USERS,
    hides_attached,
    hides_next,
    takes_a_secret,
)
from kopt.core.redaction.texts import redact, spans, without
from kopt.core.redaction.values import HIDDEN, harmless
from kopt.core.secret_names import names_a_secret

_OPTION = re.compile(r"(?P<dashes>-{0,2}|\+{1,2})(?P<name>[\w.\-/]+)(?P<equals>=|:=)(?P<value>.*)", re.DOTALL)


def redact_arguments(command: Sequence[str]) -> tuple[str, ...]:
    """An argument list, in which an option and its value may be two words, and a value may hold anything."""
    text = " ".join(command)
    secrets = spans(text)
    result: list[str] = []
    before, at = "", 0
    for word in command:
        redacted = _value_of(before, word, text[:at]) if before else _word(word)
        if redacted == word and secrets:
            redacted = without(
                word, [(max(0, start - at), end - at) for start, end in secrets if start < at + len(word) and end > at]
            )
        result.append(redacted)
        before = word if not before and takes_a_secret(word) else ""
        at += len(word) + 1
    return tuple(result)


def _value_of(option: str, word: str, before: str) -> str:
    if hides_next(option, word) and not (option in ("-p", "-P") and PATHS_FOLLOW.search(before[: -len(option) - 1])):
        return HIDDEN
    name, colon, value = word.partition(":")
    if option in HEADERS and colon and names_a_secret(name.strip()) and not harmless(name, value):
        return f"{name}: {HIDDEN}"
    return _word(word)


def _word(word: str) -> str:
    option = _OPTION.fullmatch(word)
    if option and names_a_secret(option["name"]):
        kept = harmless(option["name"], option["value"])
        return word if kept else f"{option['dashes']}{option['name']}{option['equals']}{HIDDEN}"
    if option and option["dashes"] + option["name"] in USERS and hides_next("--user", option["value"]):
        return f"{option['dashes']}{option['name']}{option['equals']}{HIDDEN}"
    return word[:2] + HIDDEN if hides_attached(word[:2], word[2:]) else redact(word)
