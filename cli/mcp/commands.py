"""``kopt mcp``: a server of read-only tools on standard input and output."""

import asyncio
from pathlib import Path
from typing import Annotated

import typer

from kopt.cli.options import Kubeconfig, PrometheusToken


def mcp(
    prometheus: Annotated[
        str, typer.Option("--prometheus", metavar="URL", help="Adds the tool idle, and measured use to recommend.")
    ] = "",
    token_file: PrometheusToken = None,
    kubeconfig: Kubeconfig = None,
) -> None:
    """Serve what kopt reads as tools for an assistant: why, queue, gpus, recommend and idle (MCP, over stdio).

    The assistant's program starts it and speaks to it. It reads with your own rights and writes nothing: its client
    sends get, list and watch alone. Answers are bounded, and what others wrote in them is marked as such.

    Examples:

        kopt mcp --context research

        kopt mcp --prometheus http://prometheus:9090
    """
    asyncio.run(_serve(kubeconfig, prometheus, token_file))


async def _serve(kubeconfig: Path | None, prometheus: str, token_file: Path | None) -> None:
    from importlib.metadata import version

    from kopt.cli.mcp.server import make_server
    from kopt.cli.mcp.tools import Tools
    from kopt.cluster.client.api import KubeSettings, connect
    from kopt.core.extras import PROJECT
    from kopt.serving.base.environment import load_settings

    async with connect(kubeconfig, KubeSettings(read_only=True, user_agent="kopt-mcp")) as kube:
        tools = Tools(kube, load_settings(), prometheus, token_file)
        await make_server(tools, version(PROJECT)).run_stdio_async()
