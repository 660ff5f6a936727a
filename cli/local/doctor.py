"""``kopt doctor`` and ``kopt version``: is this machine fit for it, and what is installed."""

import os
from dataclasses import dataclass

import typer

from kopt.cli.options import Output
from kopt.cli.output import Answer, Format, column, show
from kopt.cli.progress import step
from kopt.serving.base.environment import load_settings


def doctor(output: Output = Format.TABLE) -> None:
    """Check this machine, say how to repair what is broken, and what commands need that is not installed.

    Ends with status 1 when something is broken; notes alone are no fault.

    Examples:

        kopt doctor

        kopt doctor -o json | jq '.findings[] | select(.verdict == "broken")'
    """
    from kopt.cli.local import checks
    from kopt.cli.local.checks import Severity

    with step("looking at this machine"):
        findings = list(checks.findings(load_settings(), os.environ))
    broken = [finding for finding in findings if finding.verdict == Severity.BROKEN]
    summary = f"{len(broken)} broken" if broken else "all is well"
    show(Answer("findings", findings, header={"healthy": not broken}, remarks=[summary]), output)
    if broken:
        raise typer.Exit(1)


@dataclass(frozen=True)
class VersionRow:
    """A package and its version; None where it is not installed."""

    package: str = column("package")
    version: str | None = column("version")


PACKAGES = ("kaiwo-optimizer", "ray", "mlflow", "feast", "lightgbm", "torch", "pandas", "numpy")


def version(output: Output = Format.TABLE) -> None:
    """Versions of kopt and of the packages that matter for its answers.

    Example:

        kopt version -o json
    """
    import platform
    from importlib.metadata import PackageNotFoundError
    from importlib.metadata import version as installed

    rows = [VersionRow("python", platform.python_version())]
    for package in PACKAGES:
        try:
            rows.append(VersionRow(package, installed(package)))
        except PackageNotFoundError:
            rows.append(VersionRow(package, None))
    show(Answer("packages", rows), output)
