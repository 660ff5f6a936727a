"""Files the pages load: our own, and plotly.js out of its wheel. Addresses carry a digest, so they cache for long."""

import gzip
import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import plotly

STATIC = Path(__file__).parent / "static"
PLOTLY = Path(plotly.__file__).parent / "package_data" / "plotly.min.js"
FOREVER = "public, max-age=31536000, immutable"
_TYPES = {".css": "text/css; charset=utf-8", ".js": "text/javascript; charset=utf-8", ".svg": "image/svg+xml"}


@dataclass(frozen=True)
class Asset:
    """One file, as it is and compressed."""

    content: bytes
    compressed: bytes
    media_type: str


@cache
def addresses() -> Mapping[str, str]:
    """The address of every asset by its plain name: ``style.css`` → ``/static/style.1f0c….css``."""
    return {path.name: f"/static/{path.stem}.{_digest(path)}{path.suffix}" for path in _files()}


@cache
def asset(address: str) -> Asset | None:
    """The asset at an address that ``addresses`` gives; None for any other."""
    for path in _files():
        if addresses()[path.name] == f"/static/{address}":
            content = path.read_bytes()
            return Asset(content, gzip.compress(content, 6), _TYPES[path.suffix])
    return None


def _files() -> tuple[Path, ...]:
    return (*sorted(path for path in STATIC.iterdir() if path.suffix in _TYPES), PLOTLY)


@cache
def _digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()[:16]
