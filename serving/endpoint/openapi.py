"""Writes ``docs/openapi.json`` from the application: ``python -m kopt.serving.endpoint.openapi [PATH]``."""

import json
import sys
from pathlib import Path
from typing import Any

from kopt.serving.endpoint.app import Endpoint, create_app
from kopt.serving.http.metrics import EndpointMetrics


def document() -> dict[str, Any]:
    """The OpenAPI document of the running application; needs no model and no state."""
    return create_app(Endpoint({}, EndpointMetrics()), manage=False).openapi()


def text() -> str:
    return json.dumps(document(), indent=1, sort_keys=True) + "\n"


def main() -> None:
    path = Path(sys.argv[1]) if len(sys.argv) > 1 else Path("docs/openapi.json")
    path.write_text(text(), encoding="utf-8")


if __name__ == "__main__":
    main()
