"""The platform's own process, started by ``kopt up``: prepares the home, trains what is missing, serves.

``python -P -m kopt.cli.local.platform [--no-train]`` runs until SIGTERM. Its steps are reported as ``events``; a step
without work costs nothing, so that a second start is quick. A training that fails is reported and does not keep the
champion from serving.
"""

import concurrent.futures
import contextlib
import os
import sys
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from kopt.cli.errors import Refused, Terminated, leave_on_sigterm
from kopt.cli.local.events import Events, claim_standard_output
from kopt.cli.local.supervisor import TRY_AGAIN
from kopt.core.settings import Settings
from kopt.models.predictors import predictor_names
from kopt.serving.base.environment import load_settings

if TYPE_CHECKING:
    from kopt.models.registry.registry import Registry
    from kopt.training.pipeline.progress import Event
    from kopt.training.pipeline.tasks import RayTasks

PREDICTOR = "demand"
OBJECT_STORE_BYTES = 512 << 20
QUICK = {"rounds": 60, "rows_per_series": 800, "network_epochs": 3}
"""The example services' challenger is for seeing the gate at work within a minute, not for winning."""
SERVICES = (
    "llama-8b-chat",
    "bge-m3-search",
    "mistral-7b-code",
    "qwen-vl-7b",
    "whisper-large",
    "e5-embed",
    "nllb-translate",
    "llama-70b-agent",
)
"""Of the example; the generator makes demand for them, on which the first challenger trains."""
DAYS = 10.0


def main(arguments: list[str]) -> int:
    """Run until a signal ends it."""
    events, settings = claim_standard_output(), load_settings()
    leave_on_sigterm()
    try:
        _run(events, settings, train="--no-train" not in arguments)
    except Terminated:
        return 0
    except _RayIsSlow:
        return TRY_AGAIN
    return 0


class _RayIsSlow(Refused):
    """Ray gives its own processes thirty seconds; on a busy machine that is too little once in a while."""


def _run(events: Events, settings: Settings, *, train: bool) -> None:
    with events.step("home", "prepare the home") as outcome:
        outcome(prepare_home(settings))
    from kopt.serving.endpoint import deploy

    # Serve reads its switches once, in every process of Ray: they are set before Ray starts.
    deploy.prepare_environment(settings)
    # Ray waits for its own processes most of the time; a little work beside it costs nothing, much would starve it.
    with concurrent.futures.ThreadPoolExecutor(1) as beside:
        registering = beside.submit(_register, events, settings)
        with events.step("ray", "start Ray"):
            tasks = _start_ray(settings, lambda text: events.update("ray", text))
        registry = registering.result()
    with tasks:
        with events.step("features", "prepare the feature store") as outcome:
            outcome(ensure_features(settings))
        if train:
            ensure_challenger(events, settings, registry, tasks)
        _serve(events, settings)


def _register(events: Events, settings: Settings) -> "Registry":
    with events.step("champion", "register the shipped models") as outcome:
        from kopt.models.registry.registry import Registry

        registry = Registry(settings)
        outcome(ensure_champions(registry))
    return registry


def _start_ray(settings: Settings, on_slow: Callable[[str], None] = lambda _: None) -> "RayTasks":
    """Ray for training and serving alike; closing what is returned ends it if it was started here."""
    from kopt.training.pipeline.tasks import RayTasks

    try:
        tasks = RayTasks(settings, store_bytes=OBJECT_STORE_BYTES, on_slow=on_slow)
    except Exception as error:
        if "timed out during startup" in str(error):
            raise _RayIsSlow("its processes took more than thirty seconds; the machine is busy") from error
        raise
    return tasks


def prepare_home(settings: Settings) -> str:
    """Folders of our own, private to their owner, and example services where there is no demand yet."""
    for folder in (settings.home, settings.keys, settings.home / "logs"):
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    demand = demand_folder(settings)
    if demand.exists():
        return str(settings.home)
    from kopt.data.demand.files import write_demand
    from kopt.data.demand.generator import generate

    draft = demand.with_name(f".demand.{os.getpid()}")
    series = generate(services=len(SERVICES), days=DAYS)
    named = [replace(item, name=name) for item, name in zip(series, SERVICES, strict=True)]
    write_demand(named, draft, source="generator")
    draft.rename(demand)
    return f"{settings.home} with {len(SERVICES)} example services"


def demand_folder(settings: Settings) -> Path:
    """Where the pages find the services' histories."""
    return settings.home / "demand"


def ensure_champions(registry: "Registry") -> str:
    """Every predictor's champion, or its shipped model as the first one."""
    return "; ".join(_champion(registry, name) for name in predictor_names())


def _champion(registry: "Registry", predictor: str) -> str:
    from kopt.models.registry.registry import RegistryError

    try:
        champion = registry.ensure_champion(predictor)
    except RegistryError as error:
        if predictor == PREDICTOR:
            raise
        # The endpoint serves the package's own model where the registry has none.
        return f"{predictor} is not registered ({error})"
    if champion is None:
        return f"no {predictor} model is shipped: until the first training ends, answers are fallbacks"
    return f"{predictor} champion is version {champion.version}"


def ensure_features(settings: Settings) -> str:
    """Write the services' rows into the feature store, again only when the services or the transformation change."""
    from kopt.features.store import DemandFeatureStore, transformation_digest

    folder = demand_folder(settings)
    data = (folder / "demand.parquet").stat()
    wanted = f"{transformation_digest()} {data.st_size} {data.st_mtime_ns} {bool(settings.redis_url)}"
    marker = settings.feast_repo / "written"
    if marker.exists() and marker.read_text(encoding="utf-8") == wanted:
        return "up to date"
    from kopt.data.demand.files import read_demand

    store = DemandFeatureStore(settings)
    rows = store.write(read_demand(folder))
    store.materialise()
    marker.write_text(wanted, encoding="utf-8")
    return f"{rows:,} rows"


def ensure_challenger(events: Events, settings: Settings, registry: "Registry", tasks: "RayTasks") -> None:
    """Train on the home's services unless some model was trained here before."""
    if any(model.tags.get("training") for model in registry.list(PREDICTOR)):
        return
    with contextlib.suppress(Exception), events.step("training", "train a challenger") as outcome:
        # Told by the step; the champion serves without a challenger.
        from kopt.training.demand.sources import FileSource
        from kopt.training.pipeline.run import TrainOptions, train

        done = train(
            PREDICTOR,
            source=FileSource(demand_folder(settings)),
            settings=settings,
            tasks=tasks,
            registry=registry,
            options=TrainOptions(folds=2, parameters=QUICK),
            progress=lambda event: events.update("training", f"train a challenger: {_progress_text(event)}"),
        )
        result = "passed" if done.decision.passed else "refused"
        champion = f"champion is version {done.champion.version}" if done.champion else "there is no champion"
        outcome(f"the gate {result} version {done.model.version}; {champion}")


def _progress_text(event: "Event") -> str:
    return f"{event.step} {event.done} of {event.total}" if event.total > 1 else event.step


def _serve(events: Events, settings: Settings) -> None:
    from kopt.serving.endpoint import deploy

    with events.step("serving", "start the prediction endpoint") as outcome:
        running = deploy.start(settings, progress=lambda text: events.update("serving", text))
        outcome(running.url)
    try:
        threading.Event().wait()
    finally:
        deploy.stop(running)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
