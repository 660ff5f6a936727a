"""Settings of a process: where state lies, which addresses to use. From the environment, else a TOML file.

``Settings.load`` takes ``KOPT_HOME`` etc. from the mapping it is given; the same names in lower case without the
prefix (``home``, ``api_port``) may stand in ``$KOPT_CONFIG`` or ``KOPT_HOME/kopt.toml``. The environment wins.
"""

import os
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path


class SettingsError(ValueError):
    """A setting that cannot be used; the message names it and says what was expected."""


@dataclass(frozen=True)
class Settings:
    """Every setting has a default that works on one machine without a cluster."""

    home: Path
    """State: models, registry, features, keys. Default: the user's data folder."""
    data_dir: Path | None = None
    """Real data for training, tests and benchmarks; no default."""
    url: str = ""
    """Prediction endpoint that clients use; empty means ``http://api_host:api_port``."""
    api_host: str = "127.0.0.1"
    """Interface the servers listen on; anything but loopback needs authentication in front."""
    api_port: int = 8700
    pages_port: int = 8701
    mlflow_port: int = 8702
    """TCP ports; 0 takes a free one."""
    redis_url: str = ""
    """Online feature store (``redis://host:port/0``); empty means SQLite under ``home``."""
    ray_address: str = ""
    """Ray cluster to join; empty starts a local one."""
    mlflow_uri: str = ""
    """MLflow tracking and registry; empty means SQLite under ``home``."""

    @property
    def tracking_uri(self) -> str:
        return self.mlflow_uri or f"sqlite:///{self.home / 'mlflow.db'}"

    @property
    def endpoint(self) -> str:
        return self.url or f"http://{self.api_host}:{self.api_port}"

    @property
    def artifacts(self) -> Path:
        return self.home / "artifacts"

    @property
    def feast_repo(self) -> Path:
        return self.home / "feast"

    @property
    def keys(self) -> Path:
        return self.home / "keys"

    @classmethod
    def load(cls, environ: Mapping[str, str] | None = None) -> "Settings":
        """Settings of this process. Raises SettingsError for unknown names in the file and values of a wrong type."""
        env = os.environ if environ is None else environ
        home = Path(env.get("KOPT_HOME") or _default_home(env)).expanduser()
        chosen = _from_file(Path(env["KOPT_CONFIG"]) if env.get("KOPT_CONFIG") else home / "kopt.toml")
        names = [f.name for f in fields(cls)]
        chosen |= {name: env[f"KOPT_{name.upper()}"] for name in names if env.get(f"KOPT_{name.upper()}")}
        chosen.setdefault("home", str(home))
        return cls(**{name: _convert(name, text) for name, text in chosen.items()})  # type: ignore[arg-type]


def _default_home(env: Mapping[str, str]) -> Path:
    base = env.get("XDG_DATA_HOME")
    return (Path(base) if base else Path.home() / ".local" / "share") / "kopt"


def _from_file(path: Path) -> dict[str, str]:
    if not path.is_file():
        return {}
    try:
        table = tomllib.loads(path.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise SettingsError(f"{path}: {error}") from error
    known = {f.name for f in fields(Settings)}
    if unknown := sorted(set(table) - known):
        raise SettingsError(f"{path}: unknown setting {unknown[0]!r}; known are {', '.join(sorted(known))}")
    return {name: str(value) for name, value in table.items()}


def _convert(name: str, text: str) -> object:
    if name in ("home", "data_dir"):
        return Path(text).expanduser().absolute()
    if not name.endswith("_port"):
        return text
    if not text.isdigit() or int(text) > 65535:
        raise SettingsError(f"KOPT_{name.upper()} is {text!r}; a port is a number from 0 to 65535")
    return int(text)
