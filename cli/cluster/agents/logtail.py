"""``kopt agent logtail …``: follows what training jobs print, for the checkpoint predictor."""

import asyncio
import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from kopt.cli.cluster.workload_mode import WorkloadMode, may_lower_of
from kopt.cli.errors import Refused, usage_error
from kopt.cli.options import Kubeconfig
from kopt.core.decision import Mode

if TYPE_CHECKING:
    from kopt.agents.logtail.process import ProcessSettings

app = typer.Typer(
    no_args_is_help=True,
    help="""Follow what training jobs print and ask the prediction endpoint whether they can be stopped now.

    `sidecar` reads files beside a trainer, `node` the containers of a node, `cluster` streams from the API server.
    What was read survives a restart (--state). Where the mode allows it, pods are annotated with
    kaiwo.ai/checkpoint-state, kaiwo.ai/checkpoint-safe, kaiwo.ai/last-checkpoint-time and -step, kaiwo.ai/work-at-risk
    and kaiwo.ai/checkpoint-observed-at, which says how old that is.

    Examples:

        kopt agent logtail sidecar /logs/train.log --job research/llama --checkpoints /checkpoints --gpus 8

        kopt agent logtail node --node $NODE_NAME --state /var/lib/kopt/logtail.json --mode annotate

        kopt agent logtail cluster --namespace research --all""",
)

Url = Annotated[str, typer.Option("--predictions", envvar="KOPT_URL", help="The prediction endpoint.")]
State = Annotated[
    Path | None, typer.Option("--state", metavar="FILE", help="Keeps what was read; else all is read after a restart.")
]
Rate = Annotated[float, typer.Option("--lines-per-second", help="Of one job; a job that prints more is thinned out.")]
Port = Annotated[int | None, typer.Option(help="Port of metrics; default: none.")]
Host = Annotated[str, typer.Option(help="Interface of metrics.")]
ModeOption = Annotated[
    Mode, typer.Option("--mode", help="enforce is the same as annotate; kaiwo.ai/mode of a pod takes precedence.")
]
All = Annotated[bool, typer.Option("--all", help="Namespaces without kaiwo.ai/managed=true, too.")]


@app.callback()
def logtail() -> None:
    """Follow what training jobs print."""


@app.command("sidecar")
def sidecar(
    files: Annotated[list[str], typer.Argument(metavar="FILE...", help="Files or patterns; they may come later.")],
    predictions: Url = "http://127.0.0.1:8700",
    job: Annotated[str, typer.Option(help="NAMESPACE/NAME; default: this pod's.")] = "",
    source: Annotated[str, typer.Option(help="What the lines come from; default: this pod.")] = "",
    gpus: Annotated[float, typer.Option(help="GPUs of the whole job: work at risk counts in GPU-seconds.")] = 0,
    checkpoints: Annotated[
        Path | None, typer.Option(metavar="DIR", help="The folder of the job's checkpoints.")
    ] = None,
    mode: ModeOption = Mode.OBSERVE,
    workload_mode: WorkloadMode = "",
    state: State = None,
    kubeconfig: Kubeconfig = None,
    lines_per_second: Rate = 2000,
    host: Host = "127.0.0.1",
    port: Port = None,
) -> None:
    """Follow files that a trainer beside it writes; ends, having read them to their end, with SIGTERM.

    Rotation by renaming and by truncating is followed. No rights at the API server are needed, unless the pod is to be
    annotated (--mode annotate): then get and patch on pods of its namespace.

    Examples:

        kopt agent logtail sidecar /logs/train.log --job research/llama --gpus 8

        kopt agent logtail sidecar '/logs/rank*.log' --checkpoints /checkpoints --state /logs/.kopt-logtail.json
    """
    from kopt.agents.logtail.process import SidecarSettings, serve_sidecar

    namespace, name = os.environ.get("POD_NAMESPACE", ""), os.environ.get("POD_NAME", "")
    pod = (namespace, name) if namespace and name else None
    job = job or "/".join(pod or ())
    if job.count("/") != 1 or not all(job.split("/")):
        usage_error("name the job as NAMESPACE/NAME, or set POD_NAMESPACE and POD_NAME", "--job")
    if mode is not Mode.OBSERVE and pod is None:
        usage_error("set POD_NAMESPACE and POD_NAME: which pod is to be annotated?", "--mode")
    if gpus < 0:
        usage_error("a number of GPUs is not negative", "--gpus")
    uid = os.environ.get("POD_UID", "")[:8]
    label = source or (f"{name}@{uid}" if uid else name) or job.split("/")[1]
    settings = _settings(predictions, state, kubeconfig, host, port, lines_per_second)
    may_lower = may_lower_of(workload_mode)
    asyncio.run(serve_sidecar(settings, SidecarSettings(files, job, label, gpus, checkpoints, mode, pod, may_lower)))


@app.command("node")
def node(
    node: Annotated[str, typer.Option(envvar="NODE_NAME", help="The node's name in the cluster.")],
    predictions: Url = "http://127.0.0.1:8700",
    root: Annotated[Path, typer.Option(metavar="DIR", help="Where the kubelet keeps logs.")] = Path("/var/log/pods"),
    volumes: Annotated[
        str, typer.Option(metavar="DIR", help="Where the kubelet keeps volumes of pods; empty: look at no checkpoints.")
    ] = "/var/lib/kubelet/pods",
    mode: ModeOption = Mode.OBSERVE,
    workload_mode: WorkloadMode = "",
    every: All = False,
    state: State = None,
    kubeconfig: Kubeconfig = None,
    lines_per_second: Rate = 2000,
    host: Host = "127.0.0.1",
    port: Port = None,
) -> None:
    """Follow the GPU pods of this node through the files of their containers and the checkpoints in their volumes.

    Followed are pods with GPUs that are no service's, in namespaces with kaiwo.ai/managed=true;
    kaiwo.ai/checkpoint-logs: "true" or "false" on a pod decides for it. Needs list and watch of pods and namespaces,
    and patch of pods where they are annotated. Of volumes (--volumes) only names, sizes and times of checkpoints are
    read, from a few levels of folders.

    Examples:

        kopt agent logtail node --node gpu-7 --state /var/lib/kopt/logtail.json

        kopt agent logtail node --node gpu-7 --mode annotate --predictions http://kopt-predictions:8000
    """
    from kopt.agents.logtail.log_paths import PodSettings
    from kopt.agents.logtail.process import serve_node

    if not root.is_dir():
        raise Refused(f"{root} is no folder; on a node the kubelet keeps logs in /var/log/pods")
    settings = _settings(predictions, state, kubeconfig, host, port, lines_per_second)
    pods = PodSettings(mode, every, may_lower_of(workload_mode))
    asyncio.run(serve_node(settings, pods, node, root, volumes=Path(volumes) if volumes else None))


@app.command("cluster")
def cluster(
    predictions: Url = "http://127.0.0.1:8700",
    namespace: Annotated[str, typer.Option("-n", "--namespace", help="Only this one; default: all.")] = "",
    selector: Annotated[str, typer.Option("-l", "--selector", help="Only pods with these labels.")] = "",
    mode: ModeOption = Mode.OBSERVE,
    workload_mode: WorkloadMode = "",
    every: All = False,
    state: State = None,
    kubeconfig: Kubeconfig = None,
    lines_per_second: Rate = 2000,
    host: Host = "127.0.0.1",
    port: Port = None,
) -> None:
    """Follow GPU pods through the API server, as kubectl logs --follow does; where nothing may run on the nodes.

    Which pods: as with `node`. Needs list and watch of pods and namespaces, get of pods/log, and patch of pods where
    they are annotated.

    Examples:

        kopt agent logtail cluster --namespace research --all

        kopt agent logtail cluster -l team=nlp --mode annotate --state /var/lib/kopt/logtail.json
    """
    from kopt.agents.logtail.log_paths import PodSettings
    from kopt.agents.logtail.process import serve_cluster

    settings = _settings(predictions, state, kubeconfig, host, port, lines_per_second)
    asyncio.run(serve_cluster(settings, PodSettings(mode, every, may_lower_of(workload_mode)), namespace, selector))


def _settings(
    url: str, state: Path | None, kubeconfig: Path | None, host: str, port: int | None, rate: float
) -> "ProcessSettings":
    from kopt.agents.logtail.jobs import JobSettings
    from kopt.agents.logtail.process import ProcessSettings
    from kopt.agents.logtail.rate_limit import PaceSettings
    from kopt.agents.runtime.running import log_to_stderr

    if not url.startswith(("http://", "https://")):
        usage_error(f"{url!r} is no address; write it like http://HOST:PORT", "--predictions")
    if rate <= 0:
        usage_error("a rate is positive", "--lines-per-second")
    if state is not None and not state.parent.is_dir():
        raise Refused(f"{state.parent} is no folder: the file of --state would lie in it")
    log_to_stderr()
    pace = PaceSettings(lines_per_second=rate, burst=5 * rate)
    return ProcessSettings(url, state, kubeconfig, host, port, jobs=JobSettings(pace))
