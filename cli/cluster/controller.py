"""``kopt controller NAME``: a command for each entry of the list of controllers, made from its options."""

import dataclasses
import functools
import importlib
import inspect
from collections.abc import Callable
from typing import Annotated, Any, get_args, get_type_hints

import typer

from kopt.cli.cluster.classes import check_classes
from kopt.cli.cluster.process import recorded
from kopt.cli.errors import usage_error
from kopt.cli.options import seconds, span_text
from kopt.cluster.runtime.options import ControllerOptions, Flag, Kind, OptionError, ServerOptions
from kopt.controllers.specs import CONTROLLERS, ControllerSpec

app = typer.Typer(no_args_is_help=True, help="Controllers that run in a cluster.")
_COMMON = tuple(field.name for field in dataclasses.fields(ControllerOptions))


@app.callback()
def controllers() -> None:
    """Controllers that run in a cluster."""


def command_of(spec: ControllerSpec, options: type[ServerOptions]) -> Callable[..., None]:
    """A function that typer makes a command of."""
    fields = {field.name: field for field in dataclasses.fields(options)}
    hints = get_type_hints(options, include_extras=True)

    def command(**texts: Any) -> None:
        values = {name: _value(fields[name], _flag(hints[name]), text) for name, text in texts.items()}
        try:
            settings = options(**values).settings()
        except OptionError as error:
            usage_error(str(error), error.option)
        _serve(spec, settings)

    # Its own options first, and those without a default at their head.
    ordered = sorted(fields.values(), key=_position)
    parameters = [_parameter(spec, field, hints[field.name]) for field in ordered]
    command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    command.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters} | {"return": None}
    command.__doc__ = options.__doc__
    return command


def _serve(spec: ControllerSpec, settings: Any) -> None:
    import uvloop

    from kopt.cluster.client.client_authority import ClientAuthorityError
    from kopt.cluster.runtime.http.tls_files import TlsError

    check_classes()
    try:
        with recorded(spec.name):
            uvloop.run(importlib.import_module(spec.module).serve(settings))
    except ClientAuthorityError as error:
        usage_error(str(error), "--client-ca")
    except TlsError as error:
        usage_error(str(error), "--tls")


def _position(field: "dataclasses.Field[Any]") -> tuple[bool, bool]:
    return field.name in _COMMON, field.default is not dataclasses.MISSING


def _flag(hint: Any) -> Flag:
    return next(item for item in get_args(hint) if isinstance(item, Flag))


def _parameter(spec: ControllerSpec, field: "dataclasses.Field[Any]", hint: Any) -> inspect.Parameter:
    flag, option = _flag(hint), _option(field, _flag(hint))
    default = spec.ports[0] if field.name == "port" else field.default
    kind = get_args(hint)[0]
    if flag.kind:
        kind, default = str, _text(flag, default)
    declared = f"{option}/--no-{option[2:]}" if kind is bool and not flag.is_switch else option
    information = typer.Option(
        declared,
        help=flag.help,
        metavar=flag.metavar or flag.kind or None,
        envvar=flag.environment or None,
        min=flag.minimum,
    )
    return inspect.Parameter(
        field.name,
        inspect.Parameter.KEYWORD_ONLY,
        default=inspect.Parameter.empty if default is dataclasses.MISSING else default,
        annotation=Annotated[kind, information],
    )


def _option(field: "dataclasses.Field[Any]", flag: Flag) -> str:
    return f"--{(flag.name or field.name).replace('_', '-')}"


def _text(flag: Flag, default: Any) -> Any:
    """A default as it would be typed."""
    if default is dataclasses.MISSING:
        return default
    if default is None:
        return ""
    return span_text(default) if flag.kind is Kind.SPAN else str(default)


def _value(field: "dataclasses.Field[Any]", flag: Flag, value: Any) -> Any:
    if flag.kind is Kind.PLAIN:
        return value
    if field.default is None and not value:
        return None
    option = _option(field, flag)
    return float(seconds(value, option)) if flag.kind is Kind.SPAN else _size(value, option)


def _size(text: str, option: str) -> int:
    from kopt.core.units import UnitError, parse_bytes

    try:
        return parse_bytes(text)
    except UnitError as error:
        usage_error(str(error), option)


def renamed(alias: str, name: str, command: Callable[..., None]) -> Callable[..., None]:
    """The command under an earlier name: it says so, and runs."""

    @functools.wraps(command)
    def deprecated(**texts: Any) -> None:
        typer.echo(f"kopt: `kopt controller {alias}` is deprecated; use `kopt controller {name}`", err=True)
        command(**texts)

    return deprecated


for _spec in CONTROLLERS:
    if _spec.options is not None:
        _command = command_of(_spec, _spec.options)
        app.command(_spec.name)(_command)
        for _alias in _spec.aliases:
            app.command(_alias, hidden=True)(renamed(_alias, _spec.name, _command))
