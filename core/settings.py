"""Settings of a process: where state lies, which addresses to use.

``Settings.parse`` takes ``KOPT_HOME`` etc. from the mapping it is given; the same names in lower case without the
prefix (``home``, ``api_port``) may stand in a TOML text. The environment wins. Reading either from the machine
is ``serving.base.environment.load_settings``.
"""

import math
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path

KUBE_CONTEXT = "KOPT_KUBE_CONTEXT"
"""The variable that names a context of the kubeconfig, as ``--context`` does; like KUBECONFIG it is no setting."""

_MOST_MIB = 1 << 20
_FALSE_ALARMS = (0.25, 2.0)
"""Per service and week; no others have been measured (``models.demand.anomalies``)."""


class SettingsError(ValueError):
    """A setting that cannot be used; the message names it and says what was expected."""


@dataclass(frozen=True)
class Settings:
    """Every setting has a default that works on one machine without a cluster."""

    home: Path
    """State: models, registry, features, keys. Default: the user's data folder."""
    state_dir: Path | None = None
    """What the endpoint keeps between requests, see ``state``; empty means ``home``."""
    data_dir: Path | None = None
    """Real data for training, tests and benchmarks; no default."""
    url: str = ""
    """Prediction endpoint that clients use; empty means ``http://api_host:api_port``."""
    cluster: str = ""
    """Name of the cluster at the endpoint, where it answers for several (``kopt controller runs --cluster``)."""
    api_host: str = "127.0.0.1"
    """Interface the servers listen on; anything but loopback needs authentication in front."""
    api_port: int = 8700
    pages_port: int = 8701
    mlflow_port: int = 8702
    """TCP ports; 0 takes a free one."""
    hosts: str = ""
    """Further names, separated by commas, under which callers reach the endpoint; addresses, names without a dot and
    Services of the cluster need not be named."""
    auth: str = "none"
    """``token``: callers of the endpoint show a bearer token, which the cluster's API server reviews; ``none``."""
    auth_audiences: str = ""
    """Audiences, separated by commas, that a token must be for; empty means the API server's own."""
    redis_url: str = ""
    """Online feature store (``redis://host:port/0``); empty means SQLite under ``home``."""
    database_url: str = field(default="", repr=False)
    """PostgreSQL for what the endpoint keeps between requests (``postgresql://user:password@host/name``), shared by
    replicas on several machines; empty means SQLite under ``state``."""
    record_logs_mib: int = 0
    """Mebibytes of redacted log lines, with what lay in checkpoint folders, that the endpoint keeps for
    ``kopt train checkpoint --from-cluster``; 0 keeps none."""
    anomaly_false_alarms: float = 0.5
    """Alarms per live service and week, from 0.25 to 2, that may be none: how soon demand counts as unusual."""
    ray_address: str = ""
    """Ray cluster to join; empty starts a local one."""
    mlflow_uri: str = ""
    """MLflow tracking and registry; empty means SQLite under ``home``."""

    @property
    def tracking_uri(self) -> str:
        return self.mlflow_uri or f"sqlite:///{self.home / 'mlflow.db'}"

    @property
    def state(self) -> Path:
        """Folder of what the endpoint keeps between requests: followed jobs, sizes, pairs, comparisons, live demand."""
        return self.state_dir or self.home

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
    def parse(cls, environ: Mapping[str, str], toml: str = "", *, home: Path) -> "Settings":
        """Settings from an environment and a TOML text; ``home`` is the default state folder.

        Raises SettingsError for unknown names in the text and values of a wrong type.
        """
        names = [f.name for f in fields(cls)]
        chosen = {"home": str(home)} | _from_toml(toml, names)
        chosen |= {name: environ[f"KOPT_{name.upper()}"] for name in names if environ.get(f"KOPT_{name.upper()}")}
        return cls(**{name: _convert(name, text) for name, text in chosen.items()})  # type: ignore[arg-type]


def _from_toml(text: str, valid: list[str]) -> dict[str, str]:
    try:
        table = tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        raise SettingsError(f"settings file: {error}") from error
    if unknown := sorted(set(table) - set(valid)):
        raise SettingsError(f"settings file: unknown setting {unknown[0]!r}; known are {', '.join(sorted(valid))}")
    return {name: str(value) for name, value in table.items()}


def _convert(name: str, text: str) -> object:
    if name in ("home", "state_dir", "data_dir"):
        return Path(text)
    if name == "auth" and text not in ("none", "token"):
        raise SettingsError(f"KOPT_AUTH is {text!r}; it is none or token")
    if name == "database_url" and text and not text.startswith(("postgresql://", "postgres://")):
        # Not repeated: it may hold a password.
        raise SettingsError("KOPT_DATABASE_URL is not like postgresql://user:password@host/name")
    if name.endswith("_mib"):
        if not text.isdigit() or int(text) > _MOST_MIB:
            raise SettingsError(f"KOPT_{name.upper()} is {text!r}; it is a number of MiB from 0 to {_MOST_MIB:,}")
        return int(text)
    if name == "anomaly_false_alarms":
        return _false_alarms(text)
    if not name.endswith("_port"):
        return text
    if not text.isdigit() or int(text) > 65535:
        raise SettingsError(f"KOPT_{name.upper()} is {text!r}; a port is a number from 0 to 65535")
    return int(text)


def _false_alarms(text: str) -> float:
    least, most = _FALSE_ALARMS
    try:
        rate = float(text)
    except ValueError:
        rate = math.nan
    if not least <= rate <= most:
        raise SettingsError(f"KOPT_ANOMALY_FALSE_ALARMS is {text!r}; it is a number per week from {least} to {most}")
    return rate
