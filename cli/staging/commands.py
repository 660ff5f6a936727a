"""``kopt stage``: brings data onto a disk, whole or not at all."""

import asyncio
import contextlib
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from kopt.cli.errors import Refused, explain, usage_error
from kopt.cli.options import Output
from kopt.cli.output import Answer, Format, column, show
from kopt.cli.progress import bar, print_status
from kopt.cli.staging.view import Listener, listening
from kopt.core.staging.manifest import Checksum, Manifest, Progress, Source, StagingError, Trouble
from kopt.core.staging.staged_data import StageResult
from kopt.core.units import UnitError, format_bytes, parse_bytes

if TYPE_CHECKING:
    from kopt.agents.staging.checking import Damage
    from kopt.agents.staging.settings import StageSettings

_MIB = 1 << 20


def stage(
    source: Annotated[str | None, typer.Argument(metavar="SOURCE", help="Where the data is.")] = None,
    destination: Annotated[Path | None, typer.Argument(metavar="DESTINATION", help="A folder.")] = None,
    verify: Annotated[
        Path | None, typer.Option("--verify", metavar="DESTINATION", help="Read a copy again and compare all of it.")
    ] = None,
    limit: Annotated[str, typer.Option("--limit", metavar="RATE", help="Of all parts together: 100MiB/s.")] = "",
    parallel: Annotated[int, typer.Option("--parallel", min=1, max=256, help="Parts on their way at a time.")] = 8,
    part: Annotated[str, typer.Option("--part", metavar="SIZE", help="Bytes of a part.")] = "16MiB",
    sha256: Annotated[str, typer.Option("--sha256", metavar="HEX", help="What a source of one file must have.")] = "",
    checksums: Annotated[
        Path | None, typer.Option("--checksums", metavar="FILE", help="What files must have, as sha256sum writes it.")
    ] = None,
    source_checksums: Annotated[
        bool, typer.Option(help="Compare with the source's own checksums, where it has them.")
    ] = True,
    retry: Annotated[float, typer.Option("--retry", metavar="SECONDS", min=0, help="For how long to ask again.")] = 180,
    most: Annotated[int, typer.Option("--most-objects", min=1, help="A source with more is refused.")] = 1_000_000,
    replace: Annotated[bool, typer.Option("--replace", help="Replace a copy of another source.")] = False,
    progress: Annotated[
        Path | None, typer.Option("--progress", metavar="FILE", help="Write the progress there as well, as JSON.")
    ] = None,
    claims: Annotated[
        Path, typer.Option("--claims", metavar="DIR", envvar="KOPT_PVC_ROOT", help="Where claims are mounted, by name.")
    ] = Path("/pvc"),
    remove: Annotated[
        Path | None, typer.Option("--remove", metavar="DESTINATION", help="Take a copy away, and no other files.")
    ] = None,
    result: Annotated[
        Path | None, typer.Option("--result", metavar="FILE", help="Write what came of it there, as JSON.")
    ] = None,
    output: Output = Format.TABLE,
) -> None:
    """Copy data into a folder: in parallel parts, with checksums, and without fetching a part twice if it is killed.

    The folder is complete once it has a manifest (.kopt-staging/manifest.json) and no .kopt-incomplete; the same
    command again goes on, or does nothing. -o json prints a line of JSON every second.

    Credentials are those of the clouds' own tools: AWS_*, GOOGLE_*, AZURE_*, HF_TOKEN, git's.

    Examples:

        kopt stage s3://bucket/tokens /data/tokens --limit 200MiB/s

        kopt stage hf://owner/model@v1.0 /models/model

        kopt stage https://host/set.tar /data --sha256 9f86d081…

        kopt stage git+https://host/team/code@main /code

        kopt stage --verify /data/tokens
    """
    if verify is not None or remove is not None:
        if source or destination or (verify and remove):
            option = "--verify" if verify else "--remove"
            usage_error(f"{option} names the copy itself; give it alone", option)
        if verify is not None:
            _verify(verify, parallel, output)
        if remove is not None:
            _remove(remove, result, output)
        return
    if source is None or destination is None:
        usage_error("name the source and the folder for it", "SOURCE" if source is None else "DESTINATION")
    from kopt.agents.staging.settings import StageSettings

    began = time.monotonic()
    with _reported(result):
        typed = {_single_name(source): _sha256(sha256, "--sha256")} if sha256 else {}
        checksums_by_name = typed | (_listed(checksums) if checksums else {})
        settings = StageSettings(
            parallel,
            _size(part, "--part"),
            _rate(limit),
            retry_s=retry,
            most_objects=most,
            checksums=checksums_by_name,
            check_source=source_checksums,
            replace=replace,
            progress=progress,
            claims=claims,
        )
        with listening(output, retry) as listener:
            manifest, last = asyncio.run(_staged(Source.parse(source), destination, settings, listener))
    _report(result, StageResult.of(manifest))
    if output is not Format.JSON:
        show(_answer(manifest, last, destination, time.monotonic() - began), output)


async def _staged(
    source: Source, destination: Path, settings: "StageSettings", listener: Listener
) -> tuple[Manifest, Progress]:
    from kopt.agents.runtime.running import end_signals
    from kopt.agents.staging.staging import stage as run

    latest: list[Progress] = []

    def listen(progress: Progress) -> None:
        latest[:] = [progress]
        listener(progress)

    stop = end_signals()
    work = asyncio.create_task(run(source, destination, settings, listen))
    stopped = asyncio.create_task(stop.wait())
    await asyncio.wait([work, stopped], return_when=asyncio.FIRST_COMPLETED)
    if not work.done():
        work.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await work
        raise Refused("stopped; run again to go on from here, finished parts are kept")
    stopped.cancel()
    return await work, latest[0]


@contextlib.contextmanager
def _reported(result: Path | None) -> Iterator[None]:
    """What ends the block is written to ``result`` as well."""
    from kopt.agents.staging.troubles import unsecret

    try:
        yield
    except Exception as error:
        # Whatever it is: of a pod, this is all that is reported.
        cause = error.reason if isinstance(error, StagingError) else Trouble.STOPPED
        cause = Trouble.BAD_REQUEST if isinstance(error, typer.BadParameter) else cause
        _report(result, StageResult.failed(StagingError(unsecret(explain(error)), cause)))
        raise


def _report(result: Path | None, stage_result: StageResult) -> None:
    """In place: a container's termination message is a file that cannot be replaced."""
    if result is not None:
        result.write_text(stage_result.to_json(), encoding="utf-8")


def _remove(copy_folder: Path, result: Path | None, output: Format) -> None:
    from kopt.agents.staging.removing import remove

    with _reported(result):
        files = remove(copy_folder)
    _report(result, StageResult(True, objects=files))
    if output is not Format.JSON:
        print_status(f"{files:,} files of the copy in {copy_folder} are gone")


@dataclass(frozen=True)
class _Copy:
    destination: str = column("destination")
    source: str = column("source")
    files: int = column("files")
    bytes: int = column("size", show=format_bytes)
    kept: int = column("kept", show=format_bytes)
    seconds: float = column("seconds")
    revision: str = column("revision", wide=True)


def _answer(manifest: Manifest, last: Progress, destination: Path, seconds: float) -> Answer:
    row = _Copy(
        str(destination),
        manifest.source,
        len(manifest.entries),
        manifest.bytes,
        last.bytes_kept,
        round(seconds, 2),
        manifest.revision,
    )
    return Answer("copies", [row], remarks=manifest.notes)


@dataclass(frozen=True)
class _Bad:
    path: str = column("file")
    problem: str = column("problem")


def _verify(copy_folder: Path, parallel: int, output: Format) -> None:
    from kopt.agents.staging.checking import complete, distrust, verify

    manifest = complete(copy_folder)
    done = 0
    with bar("reading (MiB)") as advance:

        def count(amount: int) -> None:
            nonlocal done
            done += amount
            advance(done // _MIB, max(1, manifest.bytes // _MIB))

        damages: list[Damage] = asyncio.run(verify(copy_folder, parallel, count))
    header = {"source": manifest.source, "files": len(manifest.entries), "bytes": manifest.bytes, "good": not damages}
    rows = [_Bad(damage.path, damage.problem) for damage in damages]
    show(Answer("damages", rows, header, empty="every file is as it was fetched"), output)
    if damages:
        distrust(copy_folder, manifest)
        raise Refused(
            f"{len(damages)} of {len(manifest.entries)} files are damaged; run kopt stage again to fetch them"
        )


def _single_name(source: str) -> str:
    """What a source of one file calls it."""
    return source.partition("?")[0].rstrip("/").rpartition("/")[2]


def _sha256(text: str, option: str) -> Checksum:
    try:
        return Checksum("sha256", text.strip().lower())
    except StagingError as error:
        usage_error(str(error), option)


def _listed(path: Path) -> dict[str, Checksum]:
    checksums_by_name: dict[str, Checksum] = {}
    for line in path.read_text().splitlines():
        value, _, name = line.partition(" ")
        if line.strip():
            checksums_by_name[name.removeprefix(" ").removeprefix("*").removeprefix("./")] = _sha256(
                value, "--checksums"
            )
    return checksums_by_name


def _size(text: str, option: str) -> int:
    try:
        size = parse_bytes(text)
    except UnitError as error:
        usage_error(str(error), option)
    if size < 1:
        usage_error("at least a byte", option)
    return size


def _rate(text: str) -> float | None:
    return float(_size(text.removesuffix("/s"), "--limit")) if text else None
