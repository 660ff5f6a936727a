"""``kopt agent telemetry``: what a node's GPUs do, by the pods that have them, for Prometheus."""

import json
import os
import sys
from pathlib import Path
from typing import Annotated

import typer

from kopt.cli.errors import usage_error

_KINDS = ("nvml", "amdsmi", "amd-smi")


def telemetry(
    node: Annotated[str, typer.Option(envvar="NODE_NAME", help="The node's name in the cluster.")] = "",
    pod_resources: Annotated[
        Path | None,
        typer.Option(
            metavar="SOCKET",
            help="The kubelet's, /var/lib/kubelet/pod-resources/kubelet.sock: name the pods that have the GPUs.",
        ),
    ] = None,
    exporter: Annotated[
        list[str] | None,
        typer.Option(
            "--exporter",
            metavar="URL",
            help="Metrics of dcgm-exporter or AMD's exporter on this node, read in place of the GPUs; repeatable.",
        ),
    ] = None,
    source: Annotated[
        str, typer.Option(metavar="NAMES", help="Of nvml, amdsmi and amd-smi, with commas: the first that answers.")
    ] = ",".join(_KINDS),
    tools: Annotated[str, typer.Option("--tools", metavar="PATH", help="Folders with amd-smi, beside PATH.")] = "",
    root: Annotated[Path, typer.Option(metavar="DIR", help="Where the node's /sys is mounted: DIR/sys.")] = Path("/"),
    kernel_log: Annotated[
        Path | None,
        typer.Option(metavar="DEVICE", help="The node's /dev/kmsg: errors of GPUs that no exporter gives."),
    ] = None,
    interval: Annotated[float, typer.Option(metavar="SECONDS", help="Between readings.")] = 10,
    fault_interval: Annotated[
        float,
        typer.Option("--fault-interval", metavar="SECONDS", help="Between looks for XIDs of NVML and the kernel log."),
    ] = 2,
    timeout: Annotated[float, typer.Option(metavar="SECONDS", help="The longest that a reading may take.")] = 5,
    stale: Annotated[float, typer.Option(metavar="SECONDS", help="Older readings are not shown.")] = 60,
    xid_window: Annotated[
        float, typer.Option("--xid-window", metavar="SECONDS", help="How long XID errors are shown as recent.")
    ] = 3600,
    max_series: Annotated[int, typer.Option(help="The most series of GPUs; what is beyond is counted.")] = 2000,
    host: Annotated[str, typer.Option(help="Interface of metrics.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Port of metrics.")] = 9468,
) -> None:
    """Show Prometheus what this node's GPUs do, by the pods that have them.

    Reads NVML (nvidia-ml-py), AMD's library amdsmi or its tool amd-smi, whichever answers; with --exporter it reads the
    exporter that runs on the node already, and no GPU. MIG instances, AMD's partitions, replicas of time slicing and
    devices of claims are told apart by what the kubelet says. A driver that hangs is given up: its series are absent.
    With --kernel-log XIDs are counted from boot on, also of GPUs that fell off the bus. Needs no rights in the cluster.

    Examples:

        kopt agent telemetry --node gpu-7 --pod-resources /var/lib/kubelet/pod-resources/kubelet.sock

        kopt agent telemetry --node gpu-7 --exporter http://127.0.0.1:9400/metrics

        kopt agent telemetry --node gpu-7 --kernel-log /dev/kmsg
    """
    if not node:
        usage_error("name the node, or set NODE_NAME", "--node")
    for value, option in (
        (interval, "--interval"),
        (fault_interval, "--fault-interval"),
        (timeout, "--timeout"),
        (stale, "--stale"),
        (xid_window, "--xid-window"),
        (max_series, "--max-series"),
    ):
        if value <= 0:
            usage_error("has to be positive", option)
    if stale < 2 * interval:
        usage_error("has to be two intervals at least: a reading that is late is no GPU that is gone", "--stale")
    names = [name.strip() for name in source.split(",") if name.strip()]
    if not names or set(names) - set(_KINDS):
        usage_error(f"of {', '.join(_KINDS)}", "--source")
    for url in exporter or ():
        if not url.startswith(("http://", "https://")):
            usage_error(f"{url} is no address of metrics, as http://127.0.0.1:9400/metrics is", "--exporter")

    arguments = {
        "node": node,
        "socket": str(pod_resources) if pod_resources is not None else "",
        "exporters": exporter or [],
        "sources": names,
        "tools": tools.replace(",", os.pathsep),
        "root": str(root),
        "kernel_log": str(kernel_log) if kernel_log is not None else "",
        "interval_s": interval,
        "timeout_s": timeout,
        "stale_s": stale,
        "most_series": max_series,
        "host": host,
        "port": port,
        "xid_window_s": xid_window,
        "fault_interval_s": fault_interval,
    }
    # In this process's place: what the command line has loaded would stay in a node's memory for ever.
    command = [sys.executable, "-P", "-m", "kopt.agents.telemetry", json.dumps(arguments)]
    os.execv(command[0], command)
