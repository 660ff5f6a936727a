"""``kopt mlflow``: how its owner gets into MLflow of this home."""

from dataclasses import dataclass
from urllib.parse import urlsplit

from kopt.cli.errors import Refused
from kopt.cli.local import state
from kopt.cli.options import Output
from kopt.cli.output import Answer, Format, column, show
from kopt.serving.base.environment import load_settings


@dataclass(frozen=True)
class AccessRow:
    """One way in."""

    what: str = column("for")
    value: str = column("use")


def mlflow(output: Output = Format.TABLE) -> None:
    """Show the link and the variables that open MLflow of the running platform; they hold its secret.

    Examples:

        kopt mlflow

        export MLFLOW_TRACKING_URI=$(kopt mlflow -o json | jq -r .MLFLOW_TRACKING_URI)

        export MLFLOW_TRACKING_TOKEN=$(kopt mlflow -o json | jq -r .MLFLOW_TRACKING_TOKEN)
    """
    from kopt.serving.mlflow_server.gate import USER
    from kopt.serving.mlflow_server.secret import tracking_secret

    settings = load_settings()
    running = state.read(settings.home) if settings.home.exists() else None
    if running is None:
        raise Refused(f"no platform runs on {settings.home}; start it with kopt up")
    secret, address = tracking_secret(settings), urlsplit(running.mlflow)
    link = address._replace(netloc=f"{USER}:{secret}@{address.netloc}", path="/").geturl()
    variables = {"MLFLOW_TRACKING_URI": running.mlflow, "MLFLOW_TRACKING_TOKEN": secret}
    rows = [AccessRow("a browser", link), *(AccessRow(f"clients: {name}", value) for name, value in variables.items())]
    remark = f"a browser that asks: user {USER}, the token as password; it allows reading and writing the registry"
    show(Answer("access", rows, document={"link": link, "user": USER, **variables}, remarks=[remark]), output)
