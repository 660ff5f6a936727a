"""``kopt estimate``: GPU memory and compute need of a training script, without a GPU."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from kopt.cli.demand import inputs
from kopt.cli.endpoint import endpoint, sizing_question
from kopt.cli.errors import Refused, usage_error
from kopt.cli.options import Output
from kopt.cli.output import Format, show
from kopt.cli.progress import Steps, print_status
from kopt.cli.script_arguments import Arguments, Gpu, Python, Timeout, Trainer, WorldSize, command_of, gpu_of
from kopt.cli.sizing.estimate_view import answer
from kopt.cli.sizing.whole_jobs import WholeJob, read_whole_job
from kopt.serving.base.environment import load_settings

if TYPE_CHECKING:
    from kopt.core.workload.sizing import SizingEstimate, WorkloadProfile
    from kopt.models.sizing.estimate import CodeResult, EstimateOptions

_ALWAYS_AVAILABLE = ("champion", "shipped")
_PICTURES = (".png", ".svg", ".pdf")

Plot = Annotated[
    Path | None, typer.Option("--plot", metavar="FILE", help="Draw memory over the steps as .png, .svg or .pdf.")
]
Profile = Annotated[
    Path | None, typer.Option("--with-profile", metavar="FILE", help="A dry run's profile (kopt profile -o json).")
]
Model = Annotated[
    str, typer.Option("--sizing-model", metavar="MODEL", help="champion, challenger, a version number, or shipped.")
]
Rerun = Annotated[bool, typer.Option("--rerun", help="Run the script again even if it has not changed.")]
Publish = Annotated[
    bool,
    typer.Option("--publish", help="Send the result to the endpoint (KOPT_URL), for the page Sizes and the webhook."),
]
Namespace = Annotated[
    str | None,
    typer.Option(
        "--namespace",
        "-n",
        metavar="NAMESPACE",
        help="With --publish, where the endpoint authenticates: the namespace of the jobs. You need the right to patch "
        "its Jobs. Default: the manifest's.",
    ),
]


def estimate(
    script: Annotated[
        str,
        typer.Argument(metavar="SCRIPT", help="A .py or .ipynb, a shell line in quotes, or a pod manifest (.yaml)."),
    ],
    arguments: Arguments = None,
    gpu: Gpu = None,
    world_size: WorldSize = None,
    timeout: Timeout = 60,
    trainer: Trainer = "auto",
    python: Python = None,
    plot: Plot = None,
    profile: Profile = None,
    model: Model = "champion",
    fresh: Rerun = False,
    publish: Publish = False,
    namespace: Namespace = None,
    output: Output = Format.TABLE,
) -> None:
    """GPU memory and compute need of a training script, without a GPU.

    The unmodified script runs on a fake device in its own Python environment, confined: no network, nothing written,
    ended in time. Trainers that cannot run that way are read by their arguments. Options of the script that are called
    like one of kopt's go behind [bold]--[/bold]. Status 1 when there is no size.

    Examples:

        kopt estimate train.py --batch-size 32

        kopt estimate --gpu h100 --plot memory.png -- train.py --gpu 0 --timeout 5

        kopt estimate 'torchrun --nproc-per-node 8 train.py --fsdp' -o json

        kopt estimate job.yaml --publish

    Of a job of several pods every set of pods is estimated, as its operator starts it: PyTorchJob, MPIJob, TrainJob
    (with its runtime in the same file), RayJob, JobSet and others.
    """
    from kopt.models.sizing.assembly import refusal
    from kopt.models.sizing.estimate import EstimateOptions

    _check_plot(plot)
    measured = None if profile is None else read_profile(profile)
    command = command_of(script, arguments or [])

    def options_of(command: Any) -> EstimateOptions:
        return EstimateOptions(
            gpu_of(command, gpu), world_size, timeout, trainer, python, profile=measured, keep_traces=not fresh
        )

    manifest = read_whole_job(Path(script)) if isinstance(command, Mapping) else None
    if manifest is not None:
        job = manifest.sized(lambda template, options: _made(template, model, options), options_of)
        sizing_estimate, code = job.most.estimate, job.most.code
    else:
        job, (sizing_estimate, code) = None, _made(command, model, options_of(command))
    drawn = plot is not None and _draw(sizing_estimate, code, plot)
    show(answer(sizing_estimate, plot if drawn else None, output, job), output)
    if publish:
        of = namespace or _namespace_of(command)
        for question, code_result in _questions(command, job, code, gpu, world_size):
            _publish(question | ({"namespace": of} if of else {}), code_result, options_of(command))
    if refusal(sizing_estimate) is not None or drawn != (plot is not None):
        raise typer.Exit(1)


def _check_plot(plot: Path | None) -> None:
    """Before the script runs, not after."""
    if plot is not None and plot.suffix.lower() not in _PICTURES:
        usage_error(f"{plot.name}: a picture ends in {', '.join(_PICTURES)}", "--plot")
    if plot is not None and not plot.absolute().parent.is_dir():
        raise Refused(f"{plot.parent}: there is no such folder to draw into")


def read_profile(path: Path) -> "WorkloadProfile":
    """The profile in a JSON document. Raises Refused for anything else."""
    import json
    from dataclasses import fields

    from kopt.core.workload.sizing import WorkloadProfile

    text = inputs.readable(path).read_text(encoding="utf-8", errors="replace")
    try:
        document = json.loads(text)
        document = document.get("profile", document)
        names = {field.name for field in fields(WorkloadProfile)}
        return WorkloadProfile(**{key: value for key, value in document.items() if key in names})
    except (ValueError, TypeError, AttributeError, RecursionError) as error:
        raise Refused(f"{path}: not a dry run's profile ({error})") from error


def _made(command: Any, model: str, options: "EstimateOptions") -> "tuple[SizingEstimate, CodeResult]":
    from kopt.models.sizing.estimate import estimate_and_code, load_sizing

    settings = load_settings()
    with Steps() as steps, steps.following() as progress:
        predictor: Any = model
        if model not in _ALWAYS_AVAILABLE:
            # A version that is not there is better known before the script has run.
            progress(f"loading the model {model}")
            predictor = load_sizing(model, settings)
        return estimate_and_code(command, model=predictor, settings=settings, options=options, progress=progress)


def _draw(sizing_estimate: "SizingEstimate", code: "CodeResult", path: Path) -> bool:
    """False where there is nothing to draw, which is said; the answer is worth showing all the same."""
    if code.timeline is None:
        print_status(f"kopt: {path} was not drawn: there is no timeline, as the script did not run on the fake device")
        return False
    from kopt.models.sizing.plot import draw

    draw(sizing_estimate, code.timeline, path)
    return True


def _namespace_of(command: Any) -> str | None:
    """The namespace that a manifest names."""
    metadata = command.get("metadata") if isinstance(command, Mapping) else None
    result = metadata.get("namespace") if isinstance(metadata, Mapping) else None
    return result if isinstance(result, str) and result else None


def _questions(
    command: Any, job: "WholeJob | None", code: "CodeResult", gpu: str | None, world_size: int | None
) -> "Iterator[tuple[dict[str, Any], CodeResult]]":
    """What the endpoint is told: about the command, or about each set of pods that is not like another one."""
    if job is None:
        yield sizing_question(command, gpu, world_size), code
        return
    for item in {item.role.key: item for item in job.roles if item.role.question is not None}.values():
        template = sizing_question(dict(item.role.question or {})["workload"], gpu, world_size)
        yield {**dict(item.role.question or {}), **template, "name": job.name}, item.code


def _publish(question: dict[str, Any], code: "CodeResult", options: "EstimateOptions") -> None:
    """What the code said and a dry run showed, for later questions to the endpoint about the same job type."""
    from kopt.models.sizing.trace_summary import summary

    settings = load_settings()
    if not code.code.allocated_bytes:
        print_status("kopt: not published: nothing is known of its size")
        return
    details = {"trace": summary(code.code)} | (
        {} if options.profile is None else {"profile": options.profile.to_dict()}
    )
    with endpoint(settings) as client:
        client.sizing(question | details)
    print_status(f"published as {question['name']} to {settings.endpoint}")
