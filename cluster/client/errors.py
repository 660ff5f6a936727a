"""What can go wrong between this process and an API server, as types that callers tell apart."""

from typing import Any


class ApiError(Exception):
    """The API server refused a request: HTTP ``status``, Kubernetes' ``reason`` (``NotFound``) and its message.

    ``retry_after_s`` is the server's own wish, where it has one.
    """

    def __init__(self, status: int, reason: str, message: str, retry_after_s: float | None = None) -> None:
        super().__init__(f"{status} {reason}: {message}" if status else f"{reason}: {message}")
        self.status, self.reason, self.message, self.retry_after_s = status, reason, message, retry_after_s


class NotFound(ApiError):
    """404: no such object, or no such kind."""


class Conflict(ApiError):
    """409: the object is not as the request assumed (resourceVersion, uid), or exists already."""


class AlreadyExists(Conflict):
    """409 to a create: an object of that name is there."""


class Gone(ApiError):
    """410: the resourceVersion or the continue token is older than what the server remembers; list again."""


class Forbidden(ApiError):
    """403: RBAC or an admission plugin says no."""


class Unauthorized(ApiError):
    """401: the credentials are not, or no longer, accepted."""


class Invalid(ApiError):
    """422: the object breaks its schema or a rule."""


class Unreachable(ApiError):
    """No answer, or none that an API server gives: refused, cut off, too slow. A write may or may not have happened."""

    def __init__(self, message: str) -> None:
        super().__init__(0, "Unreachable", message)


class NoCluster(ApiError):
    """This machine does not say which cluster is meant, or says it in a way that cannot be read."""

    def __init__(self, message: str) -> None:
        super().__init__(0, "NoCluster", message)


def unreachable(path: str, error: Exception) -> Unreachable:
    """For an error of aiohttp's. Those about connections name the server and what the system said of it."""
    host, cause = getattr(error, "host", None), getattr(error, "certificate_error", getattr(error, "os_error", None))
    if host is None or cause is None:
        return Unreachable(f"{path}: {type(error).__name__} {error}".rstrip())
    what = cause.strerror if isinstance(cause, OSError) and cause.errno and cause.strerror else str(cause)
    # A refused connection says where, once for each address of the host.
    reason = "Connection refused" if isinstance(cause, ConnectionRefusedError) else what
    return Unreachable(f"Cannot connect to {host}:{getattr(error, 'port', '')} ({reason})")


_BY_STATUS: dict[int, type[ApiError]] = {
    401: Unauthorized,
    403: Forbidden,
    404: NotFound,
    409: Conflict,
    410: Gone,
    422: Invalid,
}
_MOST_CHARS = 2000


def from_status(status: int, document: Any, retry_after_s: float | None = None) -> ApiError:
    """The error for an HTTP status and a decoded ``Status`` object (anything else is tolerated)."""
    result = document if isinstance(document, dict) else {}
    reason, message = str(result.get("reason") or "Unknown"), str(result.get("message") or "no message")[:_MOST_CHARS]
    details = result.get("details")
    if retry_after_s is None and isinstance(details, dict) and isinstance(details.get("retryAfterSeconds"), int):
        retry_after_s = float(details["retryAfterSeconds"])
    kind = AlreadyExists if reason == "AlreadyExists" else _BY_STATUS.get(status, ApiError)
    return kind(status, reason, message, retry_after_s)
