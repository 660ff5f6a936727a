"""A strict RFC 6902 subset, so that a patch which the API server would reject fails here, too."""

import copy
from collections.abc import Mapping, Sequence
from typing import Any


def patched(document: Mapping[str, Any], operations: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The document after the operations. Raises KeyError or AssertionError where one does not apply."""
    after: dict[str, Any] = copy.deepcopy(dict(document))
    for operation in operations:
        steps = [step.replace("~1", "/").replace("~0", "~") for step in operation["path"].split("/")[1:]]
        node: Any = after
        for step in steps[:-1]:
            node = node[int(step)] if isinstance(node, list) else node[step]
        assert isinstance(node, dict), operation
        assert operation["op"] == "add" or steps[-1] in node, operation
        if operation["op"] == "remove":
            del node[steps[-1]]
            continue
        node[steps[-1]] = copy.deepcopy(operation["value"])
    return after
