"""``kopt models``: what is registered, how versions compare, which one serves."""

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated

import typer

from kopt.cli.options import Output
from kopt.cli.output import Answer, Format, column, show
from kopt.serving.runtime.environment import load_settings

if TYPE_CHECKING:
    from kopt.models.registry.registry import MetricRow, RegisteredModel, Registry

app = typer.Typer(no_args_is_help=True, help="List, compare, promote and roll back registered models.")

PredictorName = Annotated[str, typer.Option("-p", "--predictor", help="Which predictor's models.")]


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
    predictor: Annotated[
        str, typer.Option("-p", "--predictor", help="Only this predictor's models; all by default.")
    ] = "",
    output: Output = Format.TABLE,
) -> None:
    """Every registered version of each predictor, newest first, with its alias and the gate's verdict.

    Examples:

        kopt models list

        kopt models list -p sizing -o json | jq '.models[0].version'
    """
    from kopt.models.predictors import predictor_names
    from kopt.sdk.forecast import has_registry

    names = [predictor] if predictor else list(predictor_names())
    registry = _registry(names[0])
    rows = (
        [_row(registered_model) for name in names for registered_model in registry.list(name)]
        if has_registry(registry.settings)
        else []
    )
    missing = "no model is registered yet; `kopt up` registers the shipped ones, `kopt train` makes more"
    show(Answer("models", rows, title=f"{predictor} models".strip(), empty=missing), output)


@app.command()
def compare(
    first: Annotated[str, typer.Argument(help="A version or an alias.")] = "champion",
    second: Annotated[str, typer.Argument(help="A version or an alias.")] = "challenger",
    predictor: PredictorName = "demand",
    output: Output = Format.TABLE,
) -> None:
    """The metrics of two versions side by side.

    Examples:

        kopt models compare

        kopt models compare 3 champion -o csv
    """
    registry = _registry(predictor)
    names = {"first": first, "second": second}
    rows = [_compared(row) for row in registry.compare(predictor, (first, second))]
    note = f"first is {first}, second is {second}"
    show(Answer("metrics", rows, header={"compared": names}, remarks=[note], empty="neither run has metrics"), output)


@app.command()
def promote(
    version: Annotated[str, typer.Argument(help="A version or an alias.")] = "challenger",
    predictor: PredictorName = "demand",
    force: Annotated[bool, typer.Option("--force", help="Although the gate did not pass it; needs --reason.")] = False,
    reason: Annotated[str, typer.Option("--reason", help="Why it is forced; stored with the version.")] = "",
    output: Output = Format.TABLE,
) -> None:
    """Make a version the champion: serving swaps to it without dropping a request.

    A version that the gate did not pass against today's champion is refused.

    Examples:

        kopt models promote

        kopt models promote 4 --force --reason "service moved to another region"
    """
    if force and not reason.strip():
        raise typer.BadParameter("--force needs a reason, which is stored with the version", param_hint="--reason")
    _show_model(_registry(predictor).promote(predictor, version, force=force, reason=reason), "is champion now", output)


@app.command()
def rollback(predictor: PredictorName = "demand", output: Output = Format.TABLE) -> None:
    """Make the champion before the present one champion again.

    Example:

        kopt models rollback
    """
    _show_model(_registry(predictor).rollback(predictor), "is champion again", output)


def _registry(predictor: str) -> "Registry":
    from kopt.models.predictors import predictor_names
    from kopt.models.registry.registry import Registry

    if predictor not in predictor_names():
        expected = ", ".join(predictor_names())
        raise typer.BadParameter(
            f"unknown predictor {predictor!r}; expected one of {expected}", param_hint="--predictor"
        )
    return Registry(load_settings())


def _show_model(model: "RegisteredModel", what: str, output: Format) -> None:
    show(Answer("models", [_row(model)], remarks=[f"{model.name} version {model.version} {what}"]), output)


def _row(model: "RegisteredModel") -> ModelRow:
    created = datetime.fromtimestamp(model.created_s, UTC).strftime("%Y-%m-%d %H:%M")
    gate = model.gate or "not judged"
    return ModelRow(
        model.name, int(model.version), list(model.aliases), gate, created, model.digest, model.gate_summary
    )


def _compared(row: "MetricRow") -> ComparedRow:
    first, second = row.values
    change = (second - first) / abs(first) if first and second is not None else None
    return ComparedRow(row.metric, first, second, change)
