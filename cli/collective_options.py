"""Options that commands about collectives share, and how their values are read."""

from typing import Annotated

import typer

from kopt.cli.errors import usage_error
from kopt.cli.options import gpus
from kopt.core.hardware.bandwidth import MAX_BYTES, BandwidthError, Collective, MeasuredCollective, collective
from kopt.core.hardware.traffic import LinkTraffic
from kopt.core.units import format_bytes, parse_bytes

_COLLECTIVES = ", ".join(collective.value for collective in Collective)

Kind = Annotated[str, typer.Option("--collective", metavar="NAME", help=f"One of {_COLLECTIVES}.")]
Size = Annotated[str, typer.Option("--bytes", metavar="SIZE", help="The message: 64KiB, 1GiB, or a number of bytes.")]
Gpu = Annotated[
    str,
    typer.Option(
        "--gpu",
        metavar="MODEL",
        help="The model, where the tool does not name it: MI300X.",
        autocompletion=gpus,
    ),
]
Model = Annotated[str, typer.Option("--model", metavar="MODEL", help="champion, a version number, or shipped.")]


Probes = Annotated[
    list[str] | None,
    typer.Option(
        "--probe",
        metavar="COLLECTIVE/NODES/SIZE=MICROSECONDS",
        help="What was measured on this machine with the same GPUs of each node; may be repeated.",
    ),
]


Traffic = Annotated[
    list[str] | None,
    typer.Option(
        "--traffic",
        metavar="LINK=GB/s[/JOBS]",
        help="What other jobs put on a link now: mlx5_0=20, GPU3=100/2, GPU3/PCIe=8; may be repeated.",
    ),
]


def traffic_of(text: str) -> LinkTraffic:
    """``mlx5_0=20/2``: two jobs put 20 GB/s on that card, in the direction that is busier."""
    link, _, figures = text.rpartition("=")
    rate, _, jobs = figures.partition("/")
    try:
        result = LinkTraffic(link.strip(), float(rate), int(jobs or 1))
        result.check(0)
    except ValueError as error:
        usage_error(f"{text[:80]!r} is no traffic such as mlx5_0=20 ({error})", "--traffic")
    if not result.link:
        usage_error(f"{text[:80]!r} names no link; write mlx5_0=20", "--traffic")
    return result


def measured_of(text: str) -> MeasuredCollective:
    """``all_reduce/2/1GiB=4521``: a collective over two nodes that took 4,521 µs."""
    name, _, rest = text.partition("/")
    nodes, _, measured = rest.partition("/")
    size, _, time_us = measured.partition("=")
    try:
        return MeasuredCollective((), collective(name), int(parse_bytes(size)), float(time_us), int(nodes))
    except ValueError as error:
        usage_error(f"{text[:80]!r} is no probe such as all_reduce/2/1GiB=4521 ({error})", "--probe")


def collective_of(name: str) -> Collective:
    try:
        return collective(name)
    except BandwidthError as error:
        usage_error(str(error), "--collective")


def bytes_of(text: str) -> int:
    try:
        size_bytes = int(parse_bytes(text))
    except ValueError as error:
        usage_error(str(error), "--bytes")
    if not 1 <= size_bytes <= MAX_BYTES:
        usage_error(f"{text} is no message; from 1 byte to {format_bytes(MAX_BYTES)} are understood", "--bytes")
    return size_bytes


def indexes(text: str) -> tuple[int, ...]:
    """``0,1,2,3`` or ``0-3,6``."""
    result: list[int] = []
    for part in text.replace(" ", "").split(","):
        first, _, last = part.partition("-")
        if not first.isdigit() or (last and not last.isdigit()) or len(first) > 4 or len(last) > 4:
            usage_error(f"{text!r} is no list of GPUs; write 0,1,2,3 or 0-7", "--gpus")
        result.extend(range(int(first), int(last or first) + 1))
    return tuple(result)
