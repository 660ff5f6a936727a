"""Writes ``docs/openapi.json`` from the application: ``python -m kopt.serving.openapi [PATH]``."""

import json
import sys
from pathlib import Path
from typing import Any

from kopt.serving.app import Endpoint, create_app
from kopt.serving.engine import DemandService
from kopt.serving.metrics import EndpointMetrics
from kopt.serving.slot import ModelSlot


def document() -> dict[str, Any]:
    """The OpenAPI document of the running application; needs no model and no state."""
    metrics, slot = EndpointMetrics(), ModelSlot(_NoSource())
    return create_app(Endpoint(DemandService(slot, metrics), metrics, slot), manage=False).openapi()


class _NoSource:
    """A registry nobody asks."""

    def resolve(self, name: str, alias: str) -> Any:
        raise LookupError(f"{name}@{alias}")

    def load(self, name: str, version: str) -> Any:
        raise LookupError(f"{name} {version}")

    def list(self, name: str) -> Any:
        raise LookupError(name)


def text() -> str:
    return json.dumps(document(), indent=1, sort_keys=True) + "\n"


def main() -> None:
    path = Path(sys.argv[1]) if len(sys.argv) > 1 else Path("docs/openapi.json")
    path.write_text(text(), encoding="utf-8")


if __name__ == "__main__":
    main()
