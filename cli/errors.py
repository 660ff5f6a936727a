"""The edge of the process: every error leaves as one clear line on stderr and exit status 1.

Wrong usage stays typer's own (status 2). ``KOPT_DEBUG=1`` lets the traceback through.
"""

import inspect
import os
import signal
import sys
from collections.abc import Sequence
from difflib import get_close_matches
from typing import Any, NoReturn

import typer
from typer.core import TyperGroup

from kopt.cli.kube_context import offer_context
from kopt.cli.output import printable
from kopt.core.extras import missing
from kopt.core.redaction import redact


class Refused(Exception):
    """An operation that is not done, and why; the message says what to do about it. Exit status 1."""


class Terminated(KeyboardInterrupt):
    """SIGTERM: whatever is being done is left, as Ctrl-C would."""


def leave_on_sigterm() -> None:
    """From now on the first SIGTERM raises Terminated; later ones are ignored while it is being left."""

    def leave(*_: object) -> None:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        raise Terminated

    signal.signal(signal.SIGTERM, leave)


def usage_error(message: str, option: str | None = None) -> NoReturn:
    """Ends with status 2: the arguments contradict each other or cannot be read."""
    raise typer.BadParameter(message, param_hint=option)


def unknown_name(what: str, name: str, names: Sequence[str], option: str, otherwise: str) -> NoReturn:
    """Ends with status 2: there is no such name. Says the nearest of ``names``, or ``otherwise`` if none is near."""
    by_lower = {each.lower(): each for each in names}
    near = get_close_matches(name.lower(), by_lower, n=1)
    usage_error(f"unknown {what} {name!r}; {f'did you mean {by_lower[near[0]]}?' if near else otherwise}", option)


class Edge(TyperGroup):
    """The root command; turns whatever the verbs raise into a line and a status."""

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        result = super().get_command(ctx, cmd_name)
        if result is not None:
            _flow(result)
            offer_context(result)
        return result

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except (typer.Exit, typer.Abort, typer.TyperException, BrokenPipeError, EOFError):
            raise
        except Exception as error:  # the process edge: nothing is left to handle it
            if debugging():
                raise
            report(error, command_of(ctx))
            raise typer.Exit(1) from error


def _flow(command: Any) -> None:
    """Lines of a paragraph in the help run on, as wide as the terminal is; examples keep theirs."""
    paragraphs = inspect.cleandoc(command.help or "").split("\n\n")
    flowing = (paragraph if paragraph.startswith(" ") else " ".join(paragraph.split("\n")) for paragraph in paragraphs)
    command.help = "\n\n".join(flowing)
    for inner in getattr(command, "commands", {}).values():
        _flow(inner)


def command_of(ctx: Any) -> str:
    """The words after ``kopt`` that name the command, such as ``demand forecast``, as far as they are known."""
    verb = ctx.invoked_subcommand or ""
    group = ctx.command.commands.get(verb)
    subcommands = [word for word in sys.argv[1:] if word in getattr(group, "commands", {})]
    return " ".join([verb, *subcommands[:1]])


def debugging() -> bool:
    return os.environ.get("KOPT_DEBUG", "") not in ("", "0")


def report(error: Exception, command: str = "") -> None:
    """One line on stderr."""
    typer.echo(f"kopt: {explain(error, command)}", err=True)


def explain(error: Exception, command: str = "") -> str:
    """The sentence for an error, without secrets: ours as they stand, foreign ones with their type and how to see
    more. ``command``, such as ``demand forecast``, decides which extra brings a missing package."""
    return redact(_sentence(error, command))


def _sentence(error: Exception, command: str) -> str:
    text = printable(" ".join(str(error).split()))
    if isinstance(error, ModuleNotFoundError) and (sentence := missing(error, command)):
        return sentence
    if isinstance(error, MemoryError):
        return "not enough memory for this input; give it fewer series or a shorter span (--since)"
    if isinstance(error, OSError):
        return _os_error(error)
    if isinstance(error, Refused) or (_is_ours(error) and text):
        return text
    return f"{type(error).__name__}: {text or 'no message'} (KOPT_DEBUG=1 shows where)"


def _os_error(error: OSError) -> str:
    if error.filename is None:
        return printable(f"{error.strerror or error}")
    return printable(f"{error.filename}: {error.strerror or 'cannot be read'}")


def _is_ours(error: Exception) -> bool:
    return any(kind.__module__.startswith("kopt.") for kind in type(error).__mro__)


def is_terminal() -> bool:
    """Are progress bars of use? Only where stderr is somebody's terminal."""
    return sys.stderr.isatty()
