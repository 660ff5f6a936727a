"""``kopt alerts``: the alert rules that come with kopt, and the same for a Prometheus."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated, Any

import typer

from kopt.cli.alerts.history import acknowledge, history
from kopt.cli.errors import unknown_name, usage_error
from kopt.cli.options import Output
from kopt.cli.output import Answer, Format, column, show
from kopt.core.alerts.catalogue import AlertRule, alert_rules, kinds, rule_groups

app = typer.Typer(invoke_without_command=True)


class RulesFormat(StrEnum):
    """What reads the rules."""

    RULE_FILE = "rule-file"
    PROMETHEUS_RULE = "prometheus-rule"


@dataclass(frozen=True)
class RuleRow:
    """A rule; ``wait`` is for how long its expression has to hold."""

    kind: str = column("about")
    severity: str = column("severity")
    alert: str = column("alert")
    means: str = column("meaning", drop=1)
    needs: list[str] = column("metrics of", drop=2)
    wait: str = column("for", wide=True)
    expr: str = column("expression", wide=True)
    summary: str = column("summary", wide=True)
    do: str = column("what to do", wide=True)


def _completed(incomplete: str) -> list[str]:
    return [rule.alert for rule in alert_rules() if rule.alert.lower().startswith(incomplete.lower())]


@app.callback()
def alerts(context: typer.Context, output: Output = Format.TABLE) -> None:
    """Alert rules for GPU clusters and for kopt itself: CPU, memory, GPUs, jobs, pods and performance.

    They are for a Prometheus that scrapes kube-state-metrics, the kubelet, a GPU exporter and kopt's components; a rule
    whose metrics are not there never fires. The chart installs them for the Prometheus operator (monitoring.rules).

    Examples:

        kopt alerts

        kopt alerts show KoptGpuXidFatal

        kopt alerts rules > /etc/prometheus/rules/kopt.yaml
    """
    if context.invoked_subcommand is None:
        hint = "What to do about one: kopt alerts show ALERT"
        show(Answer("rules", [_row(rule) for rule in alert_rules()], remarks=[hint]), output)


@app.command("show")
def show_rule(
    alert: Annotated[str, typer.Argument(metavar="ALERT", help="Such as KoptGpuIdle.", autocompletion=_completed)],
    output: Output = Format.TABLE,
) -> None:
    """What an alert means and what to do about it.

    Examples:

        kopt alerts show KoptMemoryOutOf
    """
    names = {name.lower(): rule for rule in alert_rules() for name in (rule.alert, rule.name)}
    rule = names.get(alert.lower())
    if rule is None:
        unknown_name("alert", alert, [rule.alert for rule in alert_rules()], "ALERT", "kopt alerts lists them all")
    if output is Format.TABLE:
        show(Answer("rules", [], empty=rule.alert, remarks=list(_page(rule))), output)
    else:
        show(Answer("rules", [_row(rule)]), output)


@app.command("rules")
def rules(
    to: Annotated[RulesFormat, typer.Option("--to", help="A rule file of Prometheus, or the operator's resource.")] = (
        RulesFormat.RULE_FILE
    ),
    without: Annotated[
        list[str] | None, typer.Option("--without", metavar="ALERT", help="Leave it out; repeatable.")
    ] = None,
    label: Annotated[
        list[str] | None,
        typer.Option("--label", metavar="NAME=VALUE", help="On every alert, for your routes; repeatable."),
    ] = None,
    namespace: Annotated[str, typer.Option("-n", "--namespace", help="Of the PrometheusRule.")] = "monitoring",
) -> None:
    """Write the rules for a Prometheus, as YAML on standard output.

    Examples:

        kopt alerts rules --without KoptGpuMemoryFull > kopt.yaml && promtool check rules kopt.yaml

        kopt alerts rules --to prometheus-rule --label team=platform | kubectl apply -f -
    """
    import yaml

    excluded = list(without or ())
    rule_names = [name for rule in alert_rules() for name in (rule.alert, rule.name)]
    for name in excluded:
        if name not in rule_names:
            unknown_name("alert", name, [rule.alert for rule in alert_rules()], "--without", "kopt alerts lists them")
    document: dict[str, Any] = {"groups": rule_groups(excluded, dict(_labels(label or ())))}
    if to is RulesFormat.PROMETHEUS_RULE:
        document = {
            "apiVersion": "monitoring.coreos.com/v1",
            "kind": "PrometheusRule",
            "metadata": {"name": "kopt", "namespace": namespace},
            "spec": document,
        }
    typer.echo(yaml.safe_dump(document, sort_keys=False, width=120), nl=False)


def _labels(arguments: Sequence[str]) -> Iterator[tuple[str, str]]:
    for item in arguments:
        name, equals, value = item.partition("=")
        if not (equals and value and name.isascii() and name.isidentifier()):
            usage_error(f"{item!r} is not NAME=VALUE with a label of Prometheus", "--label")
        if name in ("severity", "kind", "alertname"):
            usage_error(f"the rules set {name} themselves", "--label")
        yield name, value


def _row(rule: AlertRule) -> RuleRow:
    needs = [source.value for source in rule.needs]
    return RuleRow(rule.kind, rule.severity, rule.alert, rule.means, needs, rule.wait, rule.expr, rule.summary, rule.do)


def _page(rule: AlertRule) -> Iterator[str]:
    yield ""
    yield f"{kinds()[rule.kind]}, {rule.severity}"
    yield rule.means
    yield f"What to do: {rule.do}"
    yield ""
    yield f"Fires when this holds for {rule.wait}: {rule.expr}"


app.command("history")(history)
app.command("acknowledge")(acknowledge)
