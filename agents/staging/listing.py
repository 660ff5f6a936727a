"""The entries of a source, all of them fit for a folder."""

from dataclasses import replace

from kopt.agents.staging.origins import Origin
from kopt.agents.staging.settings import StageSettings
from kopt.core.staging import Entry, StagingError, Trouble


async def listed(origin: Origin, source: str, settings: StageSettings) -> list[Entry]:
    """By name. Raises StagingError where there are none or too many, and for names that do not go together."""
    found: dict[str, Entry] = {}
    async for one in origin.entries():
        if one.path in found:
            raise StagingError(f"{source} has {one.path!r} twice; nothing is written", Trouble.BAD_NAME)
        if len(found) >= settings.most_objects:
            raise StagingError(
                f"{source} has more than {settings.most_objects:,} objects; pack them, stage a part of them, "
                "or allow more (--most-objects)", Trouble.TOO_MANY,
            )  # fmt: skip
        found[one.path] = _checked(one, settings)
    if not found:
        raise StagingError(f"there is nothing at {source}; check the name, an empty copy is none", Trouble.EMPTY)
    unknown = sorted(set(settings.checksums) - set(found))
    if unknown:
        raise StagingError(f"{source} has no {unknown[0]!r}, of which a checksum is given", Trouble.NOT_FOUND)
    _without_folders(found, source)
    return [found[path] for path in sorted(found)]


def _checked(one: Entry, settings: StageSettings) -> Entry:
    given = settings.checksums.get(one.path)
    return replace(one, checksum=given or (one.checksum if settings.check_source else None))


def _without_folders(found: dict[str, Entry], source: str) -> None:
    """Empty objects that stand for folders go; a file where others need a folder cannot be copied."""
    folders = {path[:place] for path in found for place in _slashes(path)}
    for path in folders & found.keys():
        if found[path].bytes:
            message = f"{source} has {path!r} and files below it, which no folder can hold; nothing is written"
            raise StagingError(message, Trouble.BAD_NAME)
        del found[path]


def _slashes(path: str) -> list[int]:
    return [place for place, letter in enumerate(path) if letter == "/"]
