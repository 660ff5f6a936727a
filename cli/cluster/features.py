"""``kopt features``: which features act, on how large a share, who set that, and setting it."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeVar

import typer

from kopt.cli.errors import Refused, unknown_name, usage_error
from kopt.cli.options import Kubeconfig, Output
from kopt.cli.output import Answer, Format, column, format_time, show
from kopt.core.switches import BY_NAME, FEATURES, OFF, ON, Feature, Flip, Switches

if TYPE_CHECKING:
    from kopt.cluster.client.api import Kube

T = TypeVar("T")
_NO_OBJECT = (
    "this cluster has no switches (no featurerollouts.kaiwo.ai), so everything is on: install the chart, or apply "
    "deploy/chart/crds/ where an earlier release is installed"
)
app = typer.Typer(invoke_without_command=True)


def _percent(percent: int) -> str:
    return {OFF: "off", ON: "on"}.get(percent, f"{percent} %")


@dataclass(frozen=True)
class FeatureRow:
    """One switch. ``by`` and ``at`` (Unix seconds) are of who set it; none where it is the installation's default.
    ``alarm`` names the alarm that switched it off."""

    feature: str = column("feature")
    percent: int = column("state", show=_percent)
    unit: str = column("of", drop=2)
    default: int = column("default", show=_percent, drop=1)
    by: str | None = column("set by")
    at: float | None = column("when", show=format_time)
    alarm: str = column("alarm")
    reason: str = column("why")
    component: str = column("component", wide=True)
    acts: str = column("what it does", wide=True)


@dataclass(frozen=True)
class FlipRow:
    """One change; ``at`` is Unix seconds."""

    at: float = column("when", show=format_time)
    feature: str = column("feature")
    before: int = column("from", show=_percent)
    after: int = column("to", show=_percent)
    by: str = column("by")
    alarm: str = column("alarm")
    reason: str = column("why")


def _completed(incomplete: str) -> list[str]:
    return [feature.name for feature in FEATURES if feature.name.startswith(incomplete)]


Name = Annotated[
    str, typer.Argument(metavar="FEATURE", help="Such as queues; see kopt features.", autocompletion=_completed)
]


@app.callback()
def features(context: typer.Context, kubeconfig: Kubeconfig = None, output: Output = Format.TABLE) -> None:
    """Which features act on the cluster, on how large a share, and who set that.

    Every component watches these switches: they count at once, without a restart. What is included at 10 % is included
    at 20 %, and stays so: workloads are picked by their owner's name.

    Examples:

        kopt features

        kopt features set placement --percent 10 --reason "first trial"

        kopt features history lending -o csv
    """
    if context.invoked_subcommand is not None:
        return
    switches = _with_cluster(kubeconfig, _read, "read")
    rows = [_row(feature, switches) for feature in FEATURES]
    show(Answer("features", rows, remarks=_remarks(switches)), output)


@app.command("set")
def set_switch(
    feature: Name,
    reason: Annotated[str, typer.Option("--reason", metavar="TEXT", help="Why; kept with the change.")],
    percent: Annotated[
        int | None, typer.Option("--percent", metavar="N", min=OFF, max=ON, help="Act on this share.")
    ] = None,
    on: Annotated[bool, typer.Option("--on", help="Act on everything: 100 %.")] = False,
    off: Annotated[bool, typer.Option("--off", help="Act on nothing; what is held is released.")] = False,
    default: Annotated[bool, typer.Option("--default", help="Follow the installation's values again.")] = False,
    kubeconfig: Kubeconfig = None,
    output: Output = Format.TABLE,
) -> None:
    """Switch a feature on or off, or let it act on a share; who did it and why is kept.

    A feature that is switched off observes. Jobs that it holds are released, loans are given back; what it has changed
    and runs already stays as it is. Who you are is what the API server says. An alarm never switches a feature on:
    after a fall-back a person does, and the alarm that lasts is overruled by that.

    Examples:

        kopt features set queues --percent 10 --reason "first trial"

        kopt features set lending --off --reason "quota audit, back on Monday"

        kopt features set sizing --on --reason "new model is in, INC-4211"
    """
    _require_feature(feature)
    wanted = _wanted(percent, on=on, off=off, default=default)
    if not reason.strip():
        usage_error("say why, for whoever finds it later", "--reason")

    async def work(kube: "Kube") -> tuple[Switches, Flip | None]:
        return await _set(kube, feature, wanted, reason.strip())

    switches, flip = _with_cluster(kubeconfig, work, "change")
    remarks = [] if flip else ["Nothing changed: it was so already."]
    header = {"changed": flip is not None}
    show(Answer("features", [_row(BY_NAME[feature], switches)], header, remarks=remarks, hide_header=True), output)


@app.command("history")
def history(
    feature: Annotated[
        str | None, typer.Argument(metavar="FEATURE", help="All by default.", autocompletion=_completed)
    ] = None,
    kubeconfig: Kubeconfig = None,
    output: Output = Format.TABLE,
) -> None:
    """The last hundred changes of switches, newest first: who, when, from what to what, and why.

    Examples:

        kopt features history

        kopt features history sizing -o json
    """
    if feature is not None:
        _require_feature(feature)
    switches = _with_cluster(kubeconfig, _read, "read")
    rows = [
        FlipRow(flip.at_s, flip.feature, flip.before, flip.after, flip.by, flip.alarm, flip.reason)
        for flip in switches.history
        if feature in (None, flip.feature)
    ]
    show(Answer("changes", rows, empty="no switch was changed yet"), output)


def _require_feature(feature: str) -> None:
    if feature not in BY_NAME:
        unknown_name("feature", feature, list(BY_NAME), "FEATURE", f"there are {', '.join(BY_NAME)}")


def _wanted(percent: int | None, *, on: bool, off: bool, default: bool) -> int | None:
    """None for the installation's default."""
    if sum((percent is not None, on, off, default)) != 1:
        usage_error("give one of --percent N, --on, --off and --default", "--percent")
    return None if default else ON if on else OFF if off else percent


def _row(feature: Feature, switches: Switches) -> FeatureRow:
    setting = switches.settings.get(feature.name)
    return FeatureRow(
        feature.name,
        switches.percent(feature.name),
        feature.unit,
        switches.default(feature.name),
        None if setting is None else setting.by,
        None if setting is None else setting.at_s,
        "" if setting is None else setting.alarm,
        "" if setting is None else setting.reason,
        feature.controller,
        feature.acts,
    )


def _remarks(switches: Switches) -> list[str]:
    alarmed = [name for name, setting in switches.settings.items() if setting.alarm]
    if not alarmed:
        return []
    names = ", ".join(sorted(alarmed))
    return [f"Switched off by an alarm: {names}. Only a person switches it on again (kopt features set)."]


def _with_cluster(kubeconfig: Path | None, work: "Callable[[Kube], Awaitable[T]]", verb: str) -> T:
    from kopt.cluster.client.api import ApiError, Forbidden, NotFound, connect

    async def run() -> T:
        async with connect(kubeconfig) as kube:
            return await work(kube)

    try:
        return asyncio.run(run())
    except NotFound as error:
        raise Refused(_NO_OBJECT) from error
    except Forbidden as error:
        advice = "the ClusterRole kopt-features-edit allows it"
        raise Refused(f"you may not {verb} the switches; {advice} ({error.message})") from error
    except ApiError as error:
        done = {"change": "changed"}.get(verb, verb)
        raise Refused(f"the switches cannot be {done}: {error}") from error


async def _read(kube: "Kube") -> Switches:
    from kopt.cluster.client.resources import FEATURE_ROLLOUTS
    from kopt.cluster.objects.custom.feature_rollout import ROLLOUT_NAME, switches_of

    # By a list: without its kind there is nothing to say, without the object everything is on.
    rollouts = (await kube.list(FEATURE_ROLLOUTS, field_selector=f"metadata.name={ROLLOUT_NAME}")).items
    return switches_of(rollouts[0]) if rollouts else Switches()


async def _set(kube: "Kube", feature: str, percent: int | None, reason: str) -> tuple[Switches, Flip | None]:
    from kopt.cluster.runtime.switches import announce, user_of, write_switches

    user = await user_of(kube)
    switches, flip = await write_switches(
        kube, lambda before: before.set_by(user, feature, percent, reason, time.time()), creates=True
    )
    if flip is not None:
        await announce(kube, flip)
    return switches, flip
