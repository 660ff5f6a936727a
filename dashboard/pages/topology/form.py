"""What the form of the topology page says, read out of a request that may say anything."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from urllib.parse import parse_qs

from fastapi import Request

from kopt.core.hardware.bandwidth import Collective
from kopt.core.units import GIB, KIB, MIB
from kopt.dashboard.forms import form_of

SIZES = (64 * KIB, MIB, 64 * MIB, GIB)
MAX_TEXT_BYTES = 512 * KIB
_MAX_BODY_BYTES = 3 * MAX_TEXT_BYTES + 16 * KIB
"""A byte of the text is three in a form, at worst."""
_MAX_FIELDS = 400
_MAX_NAME = 253


@dataclass(frozen=True)
class TopologyQuery:
    """A pasted ``text`` wins over a ``node`` of the cluster; ``best`` asks for the best ``count`` GPUs."""

    text: str = ""
    node: str = ""
    gpus: frozenset[int] = frozenset()
    gpu: str = ""
    """The model, where the tool does not name it."""
    collective: Collective = Collective.ALL_REDUCE
    size_bytes: int = GIB
    count: int = 4
    best: bool = False
    cluster: str = ""
    pairs: str = ""
    """Which measurements of the cluster's pairs are shown."""
    problem: str = ""


_TOO_MUCH = f"More than {MAX_TEXT_BYTES // KIB} KiB; give the output of one tool."


async def query_of(request: Request) -> TopologyQuery:
    """Raises HTTPException 403 for a form that another site sent."""
    query: str | None = request.url.query
    if request.method == "POST":
        query = await form_of(request, _MAX_BODY_BYTES)
    if query is None:
        return TopologyQuery(problem=_TOO_MUCH)
    try:
        return _read(parse_qs(query, errors="replace", max_num_fields=_MAX_FIELDS))
    except ValueError:
        return TopologyQuery(problem="This form has more fields than the page gave it.")


def _read(fields: Mapping[str, Sequence[str]]) -> TopologyQuery:
    def value_of(name: str) -> str:
        return fields.get(name, [""])[-1]

    text = value_of("text")
    if len(text.encode("utf-8", "replace")) > MAX_TEXT_BYTES:
        return TopologyQuery(problem=_TOO_MUCH)
    kinds = {collective.value: collective for collective in Collective}
    sizes = {str(siz): siz for siz in SIZES}
    return TopologyQuery(
        text,
        value_of("node")[:_MAX_NAME],
        frozenset(map(_number, fields.get("gpus", [])[:_MAX_FIELDS])) - {-1},
        value_of("gpu").strip()[:60],
        kinds.get(value_of("collective"), Collective.ALL_REDUCE),
        sizes.get(value_of("bytes"), GIB),
        max(2, _number(value_of("count") or "4")),
        bool(value_of("best")),
        value_of("cluster")[:_MAX_NAME],
        value_of("pairs")[:60],
    )


def _number(text: str) -> int:
    """-1 for what is none."""
    return int(text) if text.isascii() and text.isdigit() and len(text) <= 4 else -1
