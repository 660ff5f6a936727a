"""Foreign errors as sentences: what happened, and what to do about it; never a secret."""

import errno
import os
import re
from pathlib import Path

from obstore import exceptions as stores

from kopt.core.staging.manifest import StagingError, Trouble, redacted

MISSING_ERRORS = (stores.NotFoundError, FileNotFoundError)
"""Obstore raises the second for what its documentation calls the first."""
STORE_ERRORS = (stores.BaseError, FileNotFoundError)
_SECRET_NAMES = re.compile(r"SECRET|TOKEN|PASSWORD|_KEY|SIGNATURE|SAS|CREDENTIAL")
_SHORTEST_SECRET = 6
_STATUS = re.compile(r"status code: (\d{3})")
_BUSY = {"429", "500", "502", "503", "504"}
_CONNECT = "kind: Connect,"
_METADATA = re.compile(r"169\.254\.169\.254|metadata\.google|InstanceMetadata|IMDS|instance metadata", re.IGNORECASE)
_CREDENTIALS = {
    "s3": "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY (or a web identity)",
    "gs": "GOOGLE_SERVICE_ACCOUNT (the path of a key file)",
    "az": "AZURE_STORAGE_ACCOUNT_NAME and AZURE_STORAGE_ACCOUNT_KEY (or a SAS token)",
    "hf": "HF_TOKEN",
}


def unsecret(text: str) -> str:
    """Text without the queries of URLs, and without the values of variables whose names say that they are secret."""
    text = redacted(text)
    for name, value in os.environ.items():
        if len(value) >= _SHORTEST_SECRET and _SECRET_NAMES.search(name.upper()):
            text = text.replace(value, "***")
    return text


def of_source(error: BaseException, what: str, kind: str) -> StagingError:
    """The sentence for an error of a store or of HTTP; ``what`` was asked for, ``kind`` is the source's scheme."""
    if isinstance(error, StagingError):
        return error
    detail = _detail(error)
    variables = _CREDENTIALS.get(kind, "the URL's own")
    match error:
        case stores.NotFoundError() | FileNotFoundError():
            return StagingError(f"{what} is not there; check the name, and the revision or region", Trouble.NOT_FOUND)
        case stores.PermissionDeniedError() | stores.UnauthenticatedError() | PermissionError():
            message = f"{what} may not be read; check the credentials ({variables}) and their rights: {detail}"
            return StagingError(message, Trouble.DENIED)
        case stores.PreconditionError():
            return changed(what)
        case stores.InvalidPathError():
            return StagingError(f"{what}: the source has a name that is no path: {detail}", Trouble.BAD_NAME)
    if _METADATA.search(str(error)):
        return StagingError(f"no credentials for {what}; set {variables}", Trouble.DENIED)
    status = _status(error)
    if status in ("401", "403"):
        return StagingError(f"{what} may not be read; check the credentials ({variables}): {detail}", Trouble.DENIED)
    if status == "404":
        return StagingError(f"{what} is not there; check the name: {detail}", Trouble.NOT_FOUND)
    if status in _BUSY:
        return StagingError(
            f"{what}: the source stayed too busy for longer than was waited; run again to go on from here, with a "
            f"--limit or fewer --parallel if it stays so: {detail}",
            Trouble.UNREACHABLE,
        )
    return StagingError(
        f"{what} could not be read: {detail}; run again to go on from here, finished parts are kept",
        Trouble.UNREACHABLE,
    )


def changed(what: str) -> StagingError:
    return StagingError(
        f"{what} changed at its source while it was fetched; its parts are dropped, run again for the new one",
        Trouble.CHANGED,
    )


def of_disk(error: OSError, path: Path) -> StagingError:
    """The sentence for what the destination refuses."""
    where = error.filename or path
    match error.errno:
        case errno.ENOSPC | errno.EDQUOT:
            word = "is full" if error.errno == errno.ENOSPC else "has no quota left"
            message = f"the disk under {path} {word}; free some room or take a larger volume, then run again to go on"
            return StagingError(message, Trouble.NO_ROOM)
        case errno.EFBIG:
            message = f"{where}: larger than a file may be here (ulimit -f, or the file system's limit)"
            return StagingError(message, Trouble.NO_ROOM)
        case errno.EACCES | errno.EPERM | errno.EROFS:
            message = f"{where} cannot be written ({error.strerror}); check the volume's mode and the process's user"
            return StagingError(message, Trouble.DESTINATION)
    return StagingError(f"{where}: {error.strerror or error}; check the volume, then run again", Trouble.DESTINATION)


def _status(error: BaseException) -> str:
    match = _STATUS.search(str(error))
    return match[1] if match else ""


def unconnected(error: BaseException) -> bool:
    """Whether the server cannot be reached, which another kind of request cannot change."""
    return _CONNECT in str(error)


def _detail(error: BaseException) -> str:
    """What a library says, without where and how often it asked; the store's own answer, if there is one."""
    text, _, debug = str(error).partition("\n\nDebug source")
    if _CONNECT in debug:
        return f"no connection: {_why(debug.partition(_CONNECT)[2])}"
    code, message = re.search(r"<Code>(.*?)</Code>", text), re.search(r"<Message>(.*?)</Message>", text)
    if code:
        text = f"{_status(error)} {code[1]}{f': {message[1]}' if message else ''}"
    summary = " ".join(unsecret(text.rpartition(" - ")[2]).split())[:300].rstrip(" .:")
    return summary or type(error).__name__


def _why(debug: str) -> str:
    """The system's own words, or the names that the TLS library gives to what it met."""
    messages = re.findall(r'(?:message|error): "([^"]+)"', debug)
    return (
        messages[-1] if messages else " ".join(re.findall(r"(?:^\s+|error: )([A-Z]\w+)[(,]$", debug, re.MULTILINE)[-2:])
    )
