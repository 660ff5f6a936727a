"""Predictors and versions as people type them: ``demand``, ``demand 3``, ``champion``; near misses get the nearest."""

from collections.abc import Sequence
from difflib import get_close_matches

from kopt.cli.errors import unknown_name, usage_error
from kopt.models.predictors import predictor_names
from kopt.models.registry.aliases import CHALLENGER, CHAMPION

DEFAULT = "demand"
ALIASES = (CHAMPION, CHALLENGER)


def completed(incomplete: str) -> list[str]:
    """Predictors that begin so, for the shell."""
    return [name for name in predictor_names() if name.startswith(incomplete)]


def predictor(name: str, option: str) -> str:
    """The name, if there is such a predictor; else wrong usage, with the nearest name."""
    if name in predictor_names():
        return name
    unknown_name("predictor", name, predictor_names(), option, f"expected one of {', '.join(predictor_names())}")


def predictor_and_versions(
    arguments: Sequence[str], option: str | None, defaults: Sequence[str]
) -> tuple[str, tuple[str, ...]]:
    """``[PREDICTOR] [VERSION]…``: the predictor, and a version or alias for each of ``defaults``.

    ``option`` is that of ``-p``. A word that is neither a version nor like an alias or a predictor is taken for an
    alias that somebody made in MLflow.
    """
    arguments = list(arguments)
    name = None if option is None else predictor(option, "--predictor")
    if arguments and (arguments[0] in predictor_names() or len(arguments) > len(defaults)):
        first = predictor(arguments.pop(0), "PREDICTOR")
        if name not in (None, first):
            usage_error(f"{first} was named, and -p says {name}", "--predictor")
        name = first
    if len(arguments) > len(defaults):
        usage_error(f"{arguments[len(defaults)]!r} is one word too many", "VERSION")
    for word in arguments:
        _refuse_near_miss(word)
    return name or DEFAULT, (*arguments, *defaults[len(arguments) :])


def _refuse_near_miss(word: str) -> None:
    valid_names = (*ALIASES, *predictor_names())
    if word.isdigit() or word in ALIASES:
        return
    if near := get_close_matches(word.lower(), valid_names, n=1, cutoff=0.75):
        usage_error(f"{word!r} is neither a version nor an alias; did you mean {near[0]}?", "VERSION")
