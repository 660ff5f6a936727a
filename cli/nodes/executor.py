"""``kopt agent node-executor``: applies signed plans to the GPUs of its node."""

import asyncio
import os
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from kopt.cli.errors import Refused, usage_error
from kopt.cli.options import Kubeconfig

if TYPE_CHECKING:
    from kopt.agents.node_executor.hardware import Hardware


class VendorOption(StrEnum):
    """Whose driver is asked."""

    AUTO = "auto"
    NVIDIA = "nvidia"
    AMD = "amd"


def node_executor(
    keys: Annotated[Path, typer.Option(metavar="DIR", help="Public keys of those who may sign plans: NAME.pub.")],
    node: Annotated[str, typer.Option(envvar="NODE_NAME", help="The node's name in the cluster.")] = "",
    journal: Annotated[Path, typer.Option(metavar="DIR", help="On the node's disk: how far a plan is.")] = Path(
        "/var/lib/kopt/node-executor"
    ),
    vendor: Annotated[VendorOption, typer.Option(help="Whose driver to ask; auto: whichever answers.")] = (
        VendorOption.AUTO
    ),
    tools: Annotated[str, typer.Option("--tools", metavar="PATH", help="Folders with amd-smi, beside PATH.")] = "",
    interval: Annotated[float, typer.Option(metavar="SECONDS", help="Between looks at the GPUs.")] = 60,
    kubeconfig: Kubeconfig = None,
    host: Annotated[str, typer.Option(help="Interface of metrics.")] = "127.0.0.1",
    port: Annotated[int | None, typer.Option(help="Port of metrics; default: none.")] = None,
) -> None:
    """Apply signed plans to this node's GPUs (MIG, partitions of AMD), and undo what fails or is cut off.

    A plan counts if a key of --keys signed it for this node in the state that it is in, with a higher sequence than any
    before, and it has not expired. All steps are recorded before they are done, read back, and undone together where
    one fails. Nothing is changed on a GPU that processes use. Needs list and watch of nodes and nodeplans, create of
    nodeplans and patch of nodeplans/status.

    Examples:

        kopt agent node-executor --node gpu-7 --keys /etc/kopt/node-keys
    """
    from kopt.agents.node_executor.journal import JournalError
    from kopt.agents.node_executor.process import ProcessSettings, serve
    from kopt.agents.runtime.running import log_to_stderr

    if not node:
        usage_error("name the node, or set NODE_NAME", "--node")
    if interval <= 0:
        usage_error("spans of time are positive", "--interval")
    if not keys.is_dir():
        raise Refused(f"{keys} of --keys is no folder")
    log_to_stderr()
    settings = ProcessSettings(node, lambda: _hardware(vendor, tools), keys, journal, interval, kubeconfig, host, port)
    try:
        asyncio.run(serve(settings))
    except* JournalError as errors:
        raise Refused(str(errors.exceptions[0])) from errors


def _hardware(vendor: VendorOption, tools: str) -> "Hardware":
    """Raises HardwareError."""
    from kopt.agents.node_executor.hardware import HardwareError
    from kopt.agents.node_executor.nvml import NvmlHardware, load_nvml

    if vendor is not VendorOption.AMD:
        try:
            return NvmlHardware(load_nvml())
        except HardwareError:
            if vendor is VendorOption.NVIDIA:
                raise
    from kopt.agents.node_executor.amd import AmdHardware

    return AmdHardware(path=tools.replace(",", os.pathsep))
