"""``kopt models``: what is registered, how versions compare, which one serves."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any

import typer

from kopt.cli.errors import Refused
from kopt.cli.options import Output
from kopt.cli.output import Answer, Format, column, show
from kopt.cli.training import names
from kopt.models.predictors import predictor_names
from kopt.serving.base.environment import load_settings

if TYPE_CHECKING:
    from kopt.models.registry.registry import MetricRow, RegisteredModel, Registry

app = typer.Typer(no_args_is_help=True, help="List, compare, promote and roll back registered models.")

_NONE_YET = "is registered yet; `kopt up` registers the shipped ones, `kopt train` makes more"
_HELP = f"Which predictor's models: {', '.join(predictor_names())}; default: {names.DEFAULT}."
PredictorOption = Annotated[
    str | None,
    typer.Option("-p", "--predictor", metavar="PREDICTOR", help=_HELP, autocompletion=names.completed),
]
PredictorArgument = Annotated[
    str | None, typer.Argument(metavar="[PREDICTOR]", help=_HELP, autocompletion=names.completed)
]


def _names_argument(metavar: str, text: str) -> Any:
    return typer.Argument(metavar=metavar, help=f"{_HELP} {text}", autocompletion=names.completed)


@dataclass(frozen=True)
class ModelRow:
    """One registered version. ``created`` is UTC."""

    predictor: str = column("predictor")
    version: int = column("version")
    aliases: list[str] = column("alias")
    gate: str = column("gate")
    created: str = column("created (UTC)")
    digest: str = column("digest", show=lambda digest: digest[:12])
    gate_summary: str = column("verdict", wide=True)


@dataclass(frozen=True)
class ComparedRow:
    """One metric of two versions; ``change`` is relative, negative where the second is smaller."""

    metric: str = column("metric")
    first: float | None = column("first")
    second: float | None = column("second")
    change: float | None = column("change", show=lambda share: f"{share:+.1%}")


@app.command("list")
def list_models(
    name: Annotated[
        str | None,
        typer.Argument(
            metavar="[PREDICTOR]", help="Only this predictor's models; all by default.", autocompletion=names.completed
        ),
    ] = None,
    predictor: Annotated[
        str, typer.Option("-p", "--predictor", help="The same as an option.", autocompletion=names.completed)
    ] = "",
    output: Output = Format.TABLE,
) -> None:
    """Every registered version of each predictor, newest first, with its alias and the gate's verdict.

    Examples:

        kopt models list

        kopt models list sizing -o json | jq '.models[0].version'
    """
    from kopt.sdk.forecast import has_registry

    if name or predictor:
        predictor, _ = names.predictor_and_versions([name] if name else [], predictor or None, ())
    registry = _registry()
    rows = (
        [
            _row(registered_model)
            for name in ([predictor] if predictor else predictor_names())
            for registered_model in registry.list(name)
        ]
        if has_registry(registry.settings)
        else []
    )
    show(Answer("models", rows, title=f"{predictor} models".strip(), empty=f"no model {_NONE_YET}"), output)


@app.command()
def compare(
    arguments: Annotated[
        list[str] | None,
        _names_argument("[PREDICTOR] [FIRST] [SECOND]", "Then two versions or aliases; default: champion challenger."),
    ] = None,
    predictor: PredictorOption = None,
    output: Output = Format.TABLE,
) -> None:
    """The metrics of two versions side by side.

    Examples:

        kopt models compare

        kopt models compare demand 3 champion -o csv
    """
    name, (first, second) = names.predictor_and_versions(arguments or (), predictor, names.ALIASES)
    registry = _registry()
    with _absent_explained(registry, name):
        if second == "challenger":
            first, second = _with_challenger(registry, name, first)
        rows = [_compared(row) for row in registry.compare(name, (first, second))]
    remark = f"first is {first}, second is {second}"
    compared = {"first": first, "second": second}
    show(
        Answer("metrics", rows, header={"compared": compared}, remarks=[remark], empty="neither run has metrics"),
        output,
    )


@app.command()
def promote(
    arguments: Annotated[
        list[str] | None, _names_argument("[PREDICTOR] [VERSION]", "Then a version or an alias; default: challenger.")
    ] = None,
    predictor: PredictorOption = None,
    force: Annotated[bool, typer.Option("--force", help="Although the gate did not pass it; needs --reason.")] = False,
    reason: Annotated[str, typer.Option("--reason", help="Why it is forced; stored with the version.")] = "",
    output: Output = Format.TABLE,
) -> None:
    """Make a version the champion: serving swaps to it without dropping a request.

    A version that the gate did not pass against today's champion is refused.

    Examples:

        kopt models promote

        kopt models promote demand 4 --force --reason "service moved to another region"
    """
    if force and not reason.strip():
        raise typer.BadParameter("--force needs a reason, which is stored with the version", param_hint="--reason")
    name, (version,) = names.predictor_and_versions(arguments or (), predictor, ("challenger",))
    registry = _registry()
    with _absent_explained(registry, name):
        model = registry.promote(name, version, force=force, reason=reason)
    _show_model(model, "is champion now", output)


@app.command()
def canary(
    arguments: Annotated[
        list[str] | None,
        _names_argument("[PREDICTOR] PERCENT", "Then how many of a hundred questions it answers; 0 ends it."),
    ] = None,
    predictor: PredictorOption = None,
    force: Annotated[bool, typer.Option("--force", help="Although the gate did not pass the challenger.")] = False,
    output: Output = Format.TABLE,
) -> None:
    """Let the challenger answer a share of the questions, before it becomes champion or not.

    The same question always gets the same model. A challenger that fails, or whose answers are measured to be wrong,
    stops answering by itself; a question on which it fails goes to the champion.

    Examples:

        kopt models canary demand 10

        kopt models canary demand 0
    """
    name, (text,) = names.predictor_and_versions(arguments or (), predictor, ("",))
    if not text.isdigit():
        raise typer.BadParameter(f"{text!r} is no percentage; write it like 10", param_hint="PERCENT")
    registry = _registry()
    with _absent_explained(registry, name):
        model = registry.set_canary(name, int(text), force=force)
    _show_model(model, f"answers {text} % of the questions now" if int(text) else "answers nobody now", output)


@app.command()
def rollback(name: PredictorArgument = None, predictor: PredictorOption = None, output: Output = Format.TABLE) -> None:
    """Make the champion before the present one champion again.

    Example:

        kopt models rollback demand
    """
    name, _ = names.predictor_and_versions([name] if name else [], predictor, ())
    registry = _registry()
    with _absent_explained(registry, name):
        model = registry.rollback(name)
    _show_model(model, "is champion again", output)


@contextmanager
def _absent_explained(registry: "Registry", name: str) -> Iterator[None]:
    """A version or alias that is not there is refused with what makes one, or shows those there are."""
    from kopt.models.registry.registry import NotRegisteredError

    try:
        yield
    except NotRegisteredError as error:
        if not registry.list(name):
            raise Refused(f"no {name} model {_NONE_YET}") from error
        raise Refused(f"{error}; `kopt models list {name}` shows the versions there are") from error


def _with_challenger(registry: "Registry", name: str, first: str) -> tuple[str, str]:
    """``first`` and the challenger; where it became champion, the version that it was compared with and the champion.

    Raises Refused where no version was ever a challenger.
    """
    from kopt.models.registry.registry import NotRegisteredError

    try:
        registry.resolve(name, "challenger")
    except NotRegisteredError as error:
        champion = next((model for model in registry.list(name) if "champion" in model.aliases), None)
        if first == "champion" and champion is not None and champion.gate_against:
            return champion.gate_against, "champion"
        raise Refused(
            f"{name} has no challenger to compare with; `kopt train {name}` makes one, and "
            f"`kopt models list {name}` shows the versions there are"
        ) from error
    return first, "challenger"


def _registry() -> "Registry":
    from kopt.models.registry.registry import Registry

    return Registry(load_settings())


def _show_model(model: "RegisteredModel", what: str, output: Format) -> None:
    show(Answer("models", [_row(model)], remarks=[f"{model.name} version {model.version} {what}"]), output)


def _row(model: "RegisteredModel") -> ModelRow:
    created = datetime.fromtimestamp(model.created_s, UTC).strftime("%Y-%m-%d %H:%M")
    gate = model.gate or "not evaluated"
    return ModelRow(
        model.name, int(model.version), list(model.aliases), gate, created, model.digest, model.gate_summary
    )


def _compared(row: "MetricRow") -> ComparedRow:
    first, second = row.values
    change = (second - first) / abs(first) if first and second is not None else None
    return ComparedRow(row.metric, first, second, change)
