"""Options of command lines whose value may be a secret."""

import re

from kopt.core.redaction.values import HIDDEN, harmless
from kopt.core.secret_names import names_a_secret

_FLAG = re.compile(r"-{1,2}[A-Za-z][\w.\-]*")
USERS = frozenset({"-u", "-U", "--user", "--proxy-user", "--userpwd", "--creds", "--http-user"})
FLAGS_AND_USER = re.compile(r"-[sSfLkviIOnNjJlqRZ#0-9]{1,8}u")
"""``-sSu`` of curl: flags without values, then that of the user. ``-gpu`` is none."""
HEADERS = frozenset({"-H", "--header", "--headers", "--proxy-header", "-b", "--cookie"})
_PORT = re.compile(r"(?:[\d.]+:)?\d{1,5}(?:[:-]\d{1,5})*(?:/(?:tcp|udp))?|[-+]?[\d.]{1,5}(?:e[-+]?\d{1,3})?")
_PATH = re.compile(r"[./~].*", re.DOTALL)
_PLAIN = re.compile(r"[a-z]+(?:-[a-z]+)*(?:=.*)?", re.DOTALL)
_PAIR = re.compile(r"(?!\d+:\d+$)(?![a-zA-Z][a-zA-Z0-9+.-]*://)[^\s:]*:.+", re.DOTALL)
PATHS_FOLLOW = re.compile(r"(?:mkdir|cp|rsync|scp|tar|tee|install|srun|sbatch|salloc)\s(?:[^|;&]*\s)?$")


def takes_a_secret(word: str) -> bool:
    """Whether the next word is this option's value and may be a secret."""
    return (
        word in USERS
        or word in HEADERS
        or bool(FLAGS_AND_USER.fullmatch(word))
        or word in ("-p", "-P")
        or bool(_FLAG.fullmatch(word) and names_a_secret(word))
    )


def hides_next(option: str, word: str) -> bool:
    """Whether all of the word behind an option is a secret."""
    if option in HEADERS:
        return option in ("-b", "--cookie") and "=" in word
    if option in USERS or FLAGS_AND_USER.fullmatch(option):
        return bool(_PAIR.fullmatch(word)) or "%" in word
    if option in ("-p", "-P"):
        return not (_PORT.fullmatch(word) or _PATH.match(word) or _FLAG.fullmatch(word) or word == HIDDEN)
    return names_a_secret(option) and not word.startswith("--") and not harmless(option, word)


def hides_attached(flag: str, value: str) -> bool:
    """``-pX`` and ``-ua:b``, as clients of databases and curl take them."""
    if re.search(r"\s", value):
        # A word with spaces is a line of a shell, which is read as a text.
        return False
    return (flag == "-p" and len(value) > 1 and _is_attached(value)) or (
        flag == "-u" and len(value) > 3 and bool(_PAIR.fullmatch(value))
    )


def _is_attached(value: str) -> bool:
    """``-pX`` as database clients take it, and not ``-p8080``, ``-path``, ``-p=4`` or ``-p./dir``."""
    return not (_PORT.fullmatch(value) or _PATH.match(value) or _PLAIN.fullmatch(value) or value.startswith("="))
