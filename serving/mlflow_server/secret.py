"""The secret that MLflow of a home asks for: made on first use, readable by the home's owner alone."""

import os
import secrets
from pathlib import Path

from kopt.core.settings import Settings

FILE = "mlflow.token"


class SecretError(RuntimeError):
    """The secret cannot be used; the message says what to do."""


def tracking_secret(settings: Settings) -> str:
    """The secret of this home, 64 hexadecimal digits unless somebody wrote another one.

    To change it, remove the file and start the platform again. Raises SecretError when others may read the file, it
    belongs to another user, or holds less than 16 characters.
    """
    path = settings.keys / FILE
    if not path.exists():
        _create(path)
    status = path.lstat()
    if status.st_mode & 0o077 or status.st_uid not in (os.geteuid(), 0):
        raise SecretError(f"{path} may be read by others; remove it and start again: another one is made")
    secret = path.read_text(encoding="utf-8").strip()
    if len(secret) < 16 or not secret.isascii() or not secret.isprintable():
        raise SecretError(f"{path} holds no secret of 16 or more characters; remove it, and another one is made")
    return secret


def _create(path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    draft = path.with_name(f".{secrets.token_hex(8)}")
    with os.fdopen(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="utf-8") as file:
        file.write(secrets.token_hex(32) + "\n")
    try:
        # A link fails where a rename would replace the secret that another process has just made.
        os.link(draft, path)
    except FileExistsError:
        pass
    finally:
        draft.unlink()
