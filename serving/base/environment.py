"""Settings read from this machine: the environment and a TOML file. Only process edges call this."""

import os
from collections.abc import Mapping
from pathlib import Path

from kopt.core.settings import Settings, SettingsError


def load_settings(environ: Mapping[str, str] | None = None) -> Settings:
    """Settings from ``KOPT_*`` and from ``$KOPT_CONFIG`` or ``KOPT_HOME/kopt.toml``.

    Raises SettingsError when the file is named but absent, not text, or holds something unknown.
    """
    env = os.environ if environ is None else environ
    home = Path(env.get("KOPT_HOME") or _default_home(env)).expanduser().absolute()
    named = env.get("KOPT_CONFIG")
    path = Path(named).expanduser() if named else home / "kopt.toml"
    if named and not path.is_file():
        raise SettingsError(f"KOPT_CONFIG names {path}, which is not a file")
    try:
        text = path.read_text(encoding="utf-8") if path.is_file() else ""
        return Settings.parse({**env, "KOPT_HOME": str(home)}, text, home=home)
    except (UnicodeDecodeError, SettingsError) as error:
        raise SettingsError(f"{path}: {error}") from error


def _default_home(env: Mapping[str, str]) -> Path:
    base = env.get("XDG_DATA_HOME")
    return (Path(base) if base else Path.home() / ".local" / "share") / "kopt"
