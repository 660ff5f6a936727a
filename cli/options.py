"""Options that several verbs share, and how their text is read."""

import re
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from kopt.cli.errors import usage_error
from kopt.cli.output import Format


class PatchFormat(StrEnum):
    """Formats of ``-o``, with ``patch``: what to change in a workload, as YAML documents."""

    TABLE = "table"
    JSON = "json"
    YAML = "yaml"
    CSV = "csv"
    PATCH = "patch"


Kubeconfig = Annotated[
    Path | None, typer.Option("--kubeconfig", metavar="FILE", help="The cluster; else KUBECONFIG, the pod, ~/.kube.")
]
PrometheusToken = Annotated[
    Path | None, typer.Option("--token-file", metavar="FILE", help="A bearer token for Prometheus.")
]
Output = Annotated[Format, typer.Option("-o", "--output", help="How to print the answer.", show_choices=True)]
Since = Annotated[
    str, typer.Option("--since", metavar="SPAN", help="How much history to read from Prometheus: 30d, 12h, 90m.")
]
Query = Annotated[
    str, typer.Option("--query", metavar="PROMQL", help="With a Prometheus address: demand per step, a series each.")
]
Label = Annotated[
    str, typer.Option("--label", metavar="LABEL", help="With a Prometheus address: the label that names a series.")
]
Step = Annotated[str, typer.Option("--step", metavar="SPAN", help="With a Prometheus address: length of a bucket.")]
Unit = Annotated[
    str | None,
    typer.Option("--unit", metavar="UNIT", help="What is counted (requests, tokens, …); default: as the data says."),
]

_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400, "w": 7 * 86400}


def gpus(incomplete: str) -> list[str]:
    """GPUs of the catalogue whose names begin so, for the shell, in lower case where that was typed."""
    from kopt.core.gpu_catalogue import gpu_catalogue

    names = (name if name.startswith(incomplete) else name.lower() for name in gpu_catalogue())
    return [name for name in names if name.startswith(incomplete)]


def seconds(text: str, option: str) -> int:
    """Seconds of a span like ``30d``; a bare number is seconds. Wrong usage ends the process with status 2."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([smhdw]?)", text.strip())
    amount = float(match[1]) * _SECONDS[match[2] or "s"] if match else 0.0
    if not match or not 1 <= amount <= 10 * 365 * 86400:
        usage_error(f"{text!r} is not a span of time; write it like 30d, 12h, 90m or 300s", option)
    return int(amount)


def span_text(span_s: float) -> str:
    """A text that ``seconds`` reads as this span, in its largest whole unit: 30d, 12h, 90s."""
    for unit in "dhm":
        if span_s and span_s % _SECONDS[unit] == 0:
            return f"{span_s / _SECONDS[unit]:g}{unit}"
    return f"{span_s:g}s"


def several_seconds(text: str, option: str) -> tuple[int, ...]:
    """Spans separated by commas, ascending and without repeats."""
    return tuple(sorted({seconds(part, option) for part in text.split(",")}))


def probabilities(text: str, option: str) -> tuple[float, ...]:
    """Probabilities in (0, 1) separated by commas, ascending and without repeats."""
    try:
        result = tuple(sorted({float(part) for part in text.split(",")}))
    except ValueError:
        result = ()
    if not result or not all(0 < value < 1 for value in result):
        usage_error(f"{text!r} are not probabilities; write them like 0.5,0.9,0.99", option)
    return result
