"""What ``kopt fractions sharing`` reads: the cluster with the user's own rights, and measured use from Prometheus."""

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from kopt.cli.errors import Refused, usage_error

if TYPE_CHECKING:
    from kopt.cli.sharing.planning import Measured

Url = Annotated[str, typer.Option("--prometheus", metavar="URL", help="Where GPUs are measured.")]
Since = Annotated[str, typer.Option("--since", metavar="SPAN", help="How far back pods are measured.")]
Slowdown = Annotated[
    str, typer.Option("--slowdown", metavar="PROMQL", help="Latency over what was promised, by namespace and pod.")
]
ConfigMap = Annotated[
    str, typer.Option("--config-map", metavar="NAMESPACE/NAME", help="The device plugin's configurations.")
]
DEFAULT_CONFIGURATIONS = "gpu-operator/device-plugin-config"
_PRESSURE_S = 3600


def config_map_key(config_map: str) -> tuple[str, str]:
    """Of ``NAMESPACE/NAME``; wrong usage ends the process with status 2."""
    namespace, slash, name = config_map.partition("/")
    if not (namespace and slash and name):
        usage_error(f"{config_map!r} is no NAMESPACE/NAME", "--config-map")
    return namespace, name


def read_measured(prometheus: str, since_s: int, slowdown: str, token_file: Path | None) -> "Measured":
    """Nothing where no Prometheus is named. Raises Refused where it cannot be read."""
    from kopt.cli.sharing.planning import Measured
    from kopt.cli.sizing.measured import read_token

    if not prometheus:
        return Measured()
    from kopt.data.demand.prometheus import PrometheusError, Server
    from kopt.data.gpu_use import read_gpu_use
    from kopt.data.sm_activity import read_pressure, read_sm_use

    now_s = time.time()
    try:
        with Server(prometheus, token=read_token(token_file)) as server:
            uses = read_gpu_use(server, float(since_s), now_s=now_s).uses
            pressures, slowdowns = read_pressure(server, min(since_s, _PRESSURE_S), now_s, slowdown)
            return Measured(uses, read_sm_use(server, since_s, now_s), pressures, slowdowns)
    except PrometheusError as error:
        raise Refused(f"measured use cannot be read: {error}") from error
