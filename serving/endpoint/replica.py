"""One replica of the endpoint as a Ray Serve deployment. The only module of serving that needs Ray to be imported."""

import sys
from collections.abc import Callable
from typing import Any

from fastapi import FastAPI
from ray import serve

from kopt.core.settings import Settings
from kopt.serving.base.local_ray import keep_replica_on_loopback


@serve.ingress()
class PredictionEndpoint:
    """Assembles an endpoint from the settings in the replica's own process and serves its application."""

    def __init__(self, settings: Settings, assemble: Callable[[Settings], Any] | None = None) -> None:
        if assemble is None:
            from kopt.serving.endpoint.assemble import assemble as from_settings

            assemble = from_settings
        keep_replica_on_loopback()
        # A background thread that computes may hold the interpreter this long while a request waits; 5 ms otherwise.
        sys.setswitchinterval(0.0005)
        self._endpoint = assemble(settings)
        self._endpoint.start()

    def __serve_build_asgi_app__(self) -> FastAPI:
        from kopt.serving.endpoint.app import create_app

        return create_app(self._endpoint, manage=False)

    def check_health(self) -> None:
        """Raises where the replica should be replaced: the thread that follows the aliases is gone."""
        if not self._endpoint.alive:
            raise RuntimeError("the thread that follows the registry's aliases has ended")

    def __del__(self) -> None:
        endpoint = getattr(self, "_endpoint", None)
        if endpoint is not None:
            endpoint.stop()
