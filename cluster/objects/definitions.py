"""The custom resource definitions of this version, as the chart installs them."""

import json
from importlib.resources import files

from kopt.cluster.client.resources import Object

FIELD_MANAGER = "kopt-crds"


def packaged_definitions() -> list[Object]:
    """All of them, by file name of the chart (``scripts/packaged_definitions.py`` writes them here)."""
    text = files("kopt.cluster.objects").joinpath("definitions.json").read_text(encoding="utf-8")
    definitions: list[Object] = json.loads(text)
    return definitions
