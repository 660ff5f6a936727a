"""Objects that a verb reads once from the cluster of a kubeconfig."""

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING

from kopt.cli.errors import Refused

if TYPE_CHECKING:
    from kopt.cluster.client.resources import Object, Resource


async def list_objects(
    kubeconfig: Path | None, *kinds: "Resource", needed: str, otherwise: str
) -> "list[list[Object]]":
    """The objects of each kind; none of a kind that is not served.

    ``needed`` is the kind (its plural) without which there is no answer, ``otherwise`` what an error says after the
    reason: what to do. Raises Refused.
    """
    from kopt.cluster.client.api import ApiError, connect
    from kopt.controllers.overview.reading import Reader

    try:
        async with connect(kubeconfig) as kube:
            reader = Reader(kube)
            objects = [list(each) for each in await asyncio.gather(*(reader.listed(kind) for kind in kinds))]
    except ApiError as error:
        raise Refused(f"the cluster cannot be read: {error}; {otherwise}") from error
    if needed in reader.unread:
        raise Refused(f"{needed} may not be read; {otherwise}")
    return objects
