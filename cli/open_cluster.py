"""A command's connection to the cluster."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from kopt.cli.errors import Refused

if TYPE_CHECKING:
    from kopt.cluster.client.api import Kube


@asynccontextmanager
async def open_cluster(
    kubeconfig: Path | None,
    *,
    failed: str = "the cluster cannot be read",
    forbidden: str = "",
    missing: str = "",
) -> "AsyncIterator[Kube]":
    """The cluster that a kubeconfig names, as long as it is worked with. Raises Refused for its errors.

    ``failed`` says what an error means, ``forbidden`` what one about rights means, and ``missing`` what one about an
    object or a kind that is not there means; where these two are empty, ``failed`` says it.
    """
    from kopt.cluster.client.api import ApiError, Forbidden, NotFound, connect

    try:
        async with connect(kubeconfig) as kube:
            yield kube
    except ApiError as error:
        if missing and isinstance(error, NotFound):
            raise Refused(f"{missing} ({error.message})") from error
        if forbidden and isinstance(error, Forbidden):
            raise Refused(f"{forbidden}: {error.message}") from error
        raise Refused(f"{failed}: {error}") from error
