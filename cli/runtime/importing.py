"""``kopt runtime import``: sends runs that are known elsewhere to the endpoint."""

from pathlib import Path
from typing import Annotated

import typer

from kopt.cli.errors import Refused
from kopt.cli.progress import bar, print_status
from kopt.data.jobs.openb import TraceError
from kopt.serving.base.environment import load_settings

_BATCH = 2_000


def import_command(
    table: Annotated[Path, typer.Argument(metavar="TABLE", help="Jobs that ran: CSV, also .gz.")],
    cluster: Annotated[
        str, typer.Option("--cluster", metavar="NAME", help="The cluster that they ran on, where the table says none.")
    ] = "",
) -> None:
    """Send the runs of a table to the endpoint, so that it can answer before it has seen any by itself.

    The columns are job_id, start_time (or submit_time), end_time (or duration), gpus, and optionally queue, name,
    user and cluster; times are Unix seconds or ISO 8601. Sending a table again changes nothing.

    Examples:

        kopt runtime import jobs.csv --cluster east

        sacct -aPX -S now-30days -o JobID,Start,End,AllocTRES | ./to_csv.sh > jobs.csv && kopt runtime import jobs.csv
    """
    from kopt.cli.endpoint import endpoint
    from kopt.data.jobs.runs import read_runs
    from kopt.serving.client.client import RequestRefused
    from kopt.serving.contract.common import AnswerError

    try:
        by_cluster = read_runs(table)
    except TraceError as error:
        raise Refused(str(error)) from error
    except OSError as error:
        raise Refused(f"{table} cannot be read: {error.strerror or error}") from error
    total = sum(map(len, by_cluster.values()))
    if not total:
        raise Refused(f"{table} has no run on a GPU")
    kept = done = 0
    try:
        with endpoint(load_settings()) as client, bar("sending runs") as advance:
            for name, runs in sorted(by_cluster.items()):
                for at in range(0, len(runs), _BATCH):
                    part = runs[at : at + _BATCH]
                    kept += client.send_runs(part, name or cluster).kept
                    done += len(part)
                    advance(done, total)
    except (RequestRefused, AnswerError) as error:
        raise Refused(f"{error}; {done} of {total} runs were sent, and sending them again is harmless") from error
    print_status(f"{total:,} runs sent, {kept:,} of them new")
