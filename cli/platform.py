"""The platform's own process, started by ``kopt up``: prepares the home, trains what is missing, serves.

``python -P -m kopt.cli.platform [--no-train]`` runs until SIGTERM. Its steps are told as ``events``; a step that has
nothing to do costs nothing, so that a second start is quick. A training that fails is told and does not keep the
champion from serving.
"""

import os
import signal
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING

from kopt.cli.events import Events, take_standard_output
from kopt.core.settings import Settings
from kopt.serving.environment import load_settings

if TYPE_CHECKING:
    from kopt.models.registry import Registry

PREDICTOR = "demand"
SERVICES, DAYS = 12, 14.0
"""Of the generator's example, on which the first challenger trains."""


def main(arguments: list[str]) -> int:
    """Run until a signal ends it."""
    events, settings = take_standard_output(), load_settings()
    ending = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: _end(ending))
    try:
        _prepare(events, settings, train="--no-train" not in arguments)
        _serve(events, settings, ending)
    except KeyboardInterrupt:
        return 0
    return 0


def _end(ending: threading.Event) -> None:
    """SIGTERM: leave whatever is being prepared; once serving, leave the wait."""
    if ending.is_set():
        return
    ending.set()
    raise KeyboardInterrupt


def _prepare(events: Events, settings: Settings, *, train: bool) -> None:
    with events.step("home", "prepare the home") as outcome:
        outcome(prepare_home(settings))
    with events.step("champion", "register the shipped model") as outcome:
        from kopt.models.registry import Registry

        registry = Registry(settings)
        outcome(ensure_champion(registry))
    with events.step("features", "prepare the feature store") as outcome:
        outcome(ensure_features(settings))
    if train:
        ensure_challenger(events, settings, registry)


def prepare_home(settings: Settings) -> str:
    """Folders of our own, private to their owner, and example services where there is no demand yet."""
    from kopt.data.demand.files import write_demand
    from kopt.data.demand.generator import generate

    for folder in (settings.home, settings.keys, settings.home / "logs"):
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    demand = demand_folder(settings)
    if demand.exists():
        return str(settings.home)
    draft = demand.with_name(f".demand.{os.getpid()}")
    write_demand(generate(services=SERVICES, days=DAYS), draft, source="generator")
    draft.rename(demand)
    return f"{settings.home} with {SERVICES} example services"


def demand_folder(settings: Settings) -> Path:
    """Where the pages find the services' histories."""
    return settings.home / "demand"


def ensure_champion(registry: "Registry") -> str:
    """Register and promote the shipped model unless there is a champion."""
    from kopt.models.registry import NotRegisteredError
    from kopt.models.shipped import verified_shipped

    try:
        champion = registry.resolve(PREDICTOR)
        return f"champion is version {champion.version}"
    except NotRegisteredError:
        model = registry.register(verified_shipped(PREDICTOR), tags={"origin": "shipped"})
        registry.judge(PREDICTOR, model.version, passed=True, against="", summary="the first model there is")
        registry.promote(PREDICTOR, model.version)
        return f"version {model.version} is the first champion"


def ensure_features(settings: Settings) -> str:
    """Apply the feature repository and write the services' rows, once."""
    if (settings.feast_repo / "registry.db").exists():
        return "as it was"
    from kopt.data.demand.files import read_demand
    from kopt.features.store import DemandFeatureStore

    store = DemandFeatureStore(settings)
    store.write(read_demand(demand_folder(settings)))
    store.materialise()
    return "applied"


def ensure_challenger(events: Events, settings: Settings, registry: "Registry") -> None:
    """Train on the home's services unless some model was trained here before."""
    from kopt.models.shipped import shipped_digests

    shipped = shipped_digests().get(PREDICTOR)
    trained = [model for model in registry.list(PREDICTOR) if model.digest != shipped]
    if trained:
        return
    try:
        with events.step("training", "train a challenger") as outcome:
            from kopt.training.pipeline import train

            done = train(
                PREDICTOR, data=demand_folder(settings), settings=settings,
                progress=lambda text: events.note("training", f"train a challenger: {text}"),
            )  # fmt: skip
            outcome(done.summary)
    except Exception as error:  # noqa: BLE001 - told by the step; the champion serves without a challenger
        print(f"training failed: {error}", file=sys.stderr)  # noqa: T201


def _serve(events: Events, settings: Settings, ending: threading.Event) -> None:
    with events.step("serving", "start Ray and the prediction endpoint") as outcome:
        from kopt.serving import deploy

        running = deploy.start(settings)
        outcome(running.url)
    try:
        ending.wait()
    except KeyboardInterrupt:
        pass
    finally:
        deploy.stop()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
