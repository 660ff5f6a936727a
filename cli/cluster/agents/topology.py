"""``kopt agent topology``: reports to the cluster what links a node's GPUs."""

import asyncio
import os
from pathlib import Path
from typing import Annotated

import typer

from kopt.cli.errors import Refused, usage_error
from kopt.cli.options import Kubeconfig

_LEAST_TRAFFIC_S = 5.0


def topology(
    node: Annotated[str, typer.Option(envvar="NODE_NAME", help="The node's name in the cluster.")] = "",
    root: Annotated[Path, typer.Option(metavar="DIR", help="Where the node's /sys is mounted: DIR/sys.")] = Path("/"),
    tools: Annotated[str, typer.Option("--tools", metavar="PATH", help="Folders with tools, beside PATH.")] = "",
    replay: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Read recorded outputs, DIR/COLLECTOR.txt, in place of tools.")
    ] = None,
    fabric: Annotated[
        Path | None, typer.Option(metavar="FILE", help="The network between nodes: ibnetdiscover's or topograph's.")
    ] = None,
    only: Annotated[str, typer.Option(metavar="NAMES", help="Only these collectors, with commas.")] = "",
    interval: Annotated[float, typer.Option(metavar="SECONDS", help="Between looks; SIGHUP asks for one now.")] = 300,
    timeout: Annotated[float, typer.Option(metavar="SECONDS", help="The longest that one tool may take.")] = 20,
    labels: Annotated[bool, typer.Option(help="Label the node; without, labels written before are taken away.")] = True,
    levels: Annotated[str, typer.Option(metavar="BLOCK,RACK", help="Labels that name the node's block and rack.")] = "",
    pod_resources: Annotated[
        Path | None,
        typer.Option(
            metavar="SOCKET",
            help="The kubelet's, /var/lib/kubelet/pod-resources/kubelet.sock: publish what it has given to pods.",
        ),
    ] = None,
    traffic_interval: Annotated[
        float, typer.Option(metavar="SECONDS", help="Measure the traffic of network cards so often; 0: not.")
    ] = 0,
    kubeconfig: Kubeconfig = None,
    host: Annotated[str, typer.Option(help="Interface of metrics.")] = "127.0.0.1",
    port: Annotated[int | None, typer.Option(help="Port of metrics; default: none.")] = None,
) -> None:
    """Discover what links this node's GPUs to one another and to network cards, and publish it as its NodeTopology.

    Runs nvidia-smi, amd-smi, rocm-smi, NVML, ibv_devinfo, rdma, lspci and /sys, where they exist; one that fails or
    hangs is reported in the object's status and does not affect the others. Writes only changes: the object, and labels
    for Kueue's and KAI's Topology and Volcano's HyperNodes (kaiwo.ai/gpu-link, gpu-link-shape, nvlink-domain,
    topology-block, topology-rack). Needs list and watch of nodes and nodetopologies, and patch of its own.

    With --pod-resources it asks the kubelet every second which devices its pods have, and publishes changes as the
    node's NodeAllocation: the scheduler extender corrects its books by it.

    With --traffic-interval it reads the cards' byte counters and publishes rates in the object's status: placement
    then prefers nodes whose cards are free. A busy node is written every five minutes, a quiet one not at all.

    Examples:

        kopt agent topology --node gpu-7

        kopt agent topology --node gpu-7 --replay ./support-case --interval 60
    """
    from kopt.agents.runtime.running import log_to_stderr
    from kopt.agents.topology.allocations import AllocationSettings
    from kopt.agents.topology.commands import Limits
    from kopt.agents.topology.labels import LabelSettings
    from kopt.agents.topology.process import ProcessSettings, serve
    from kopt.agents.topology.sources import Sources
    from kopt.agents.topology.traffic import TrafficSettings

    if not node:
        usage_error("name the node, or set NODE_NAME", "--node")
    if traffic_interval < 0 or 0 < traffic_interval < _LEAST_TRAFFIC_S:
        usage_error(f"rates need {_LEAST_TRAFFIC_S:g} seconds or more between two readings", "--traffic-interval")
    if min(interval, timeout) <= 0:
        usage_error("spans of time are positive", "--interval" if interval <= 0 else "--timeout")
    pair = tuple(part.strip() for part in levels.split(",")) if levels else ()
    if pair and (len(pair) != 2 or not all(pair)):
        usage_error("two labels, as in example.com/block,example.com/rack", "--levels")
    for folder, option in ((replay, "--replay"), (root, "--root")):
        if folder is not None and not folder.is_dir():
            raise Refused(f"{folder} of {option} is no folder")
    names = [name.strip() for name in only.split(",") if name.strip()]
    sources = Sources(root, replay, fabric, names, Limits(time_s=timeout, path=tools.replace(",", os.pathsep)))
    try:
        sources.collectors()
    except ValueError as error:
        usage_error(str(error), "--only")
    log_to_stderr()
    settings = ProcessSettings(
        node,
        sources,
        LabelSettings(labels, ((pair[0], pair[1]),) if pair else ()),
        interval_s=interval,
        allocations=AllocationSettings(pod_resources) if pod_resources is not None else None,
        traffic=TrafficSettings(root, traffic_interval) if traffic_interval else None,
        kubeconfig=kubeconfig,
        host=host,
        port=port,
    )
    asyncio.run(serve(settings))
