"""The kubeconfig by which pages, and other commands, reach the example cluster. It lies in the home, for its owner."""

import json
import os
import secrets
from dataclasses import dataclass
from pathlib import Path

NAME = FOLDER = "example"
HOST = "127.0.0.1"


@dataclass(frozen=True)
class ExampleAccess:
    """Where the example cluster listens, and the token that it wants."""

    port: int
    token: str


def folder_of(home: Path) -> Path:
    """Everything of the example: its kubeconfig, and what the endpoint keeps while it runs."""
    return home / FOLDER


def kubeconfig_of(home: Path) -> Path:
    return folder_of(home) / "kubeconfig"


def write_kubeconfig(home: Path, port: int) -> Path:
    """A kubeconfig with a new token, readable by its owner alone."""
    path = kubeconfig_of(home)
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    document = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": NAME,
        "clusters": [{"name": NAME, "cluster": {"server": f"http://{HOST}:{port}"}}],
        "users": [{"name": NAME, "user": {"token": secrets.token_urlsafe(32)}}],
        "contexts": [{"name": NAME, "context": {"cluster": NAME, "user": NAME, "namespace": "research"}}],
    }
    draft = path.with_name(f".kubeconfig.{os.getpid()}")
    with os.fdopen(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w", encoding="utf-8") as file:
        # JSON is YAML.
        json.dump(document, file)
    draft.replace(path)
    return path


def read_access(home: Path) -> ExampleAccess:
    """Raises OSError, ValueError or KeyError for a file that ``write_kubeconfig`` did not write."""
    document = json.loads(kubeconfig_of(home).read_text(encoding="utf-8"))
    server = document["clusters"][0]["cluster"]["server"]
    return ExampleAccess(int(server.rpartition(":")[2]), document["users"][0]["user"]["token"])
