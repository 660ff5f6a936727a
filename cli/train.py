"""``kopt train``: data → features → folds → evaluation → gate → registered model, in one command."""

from typing import Annotated

import typer

from kopt.cli.options import Output
from kopt.cli.output import Format


def train(
    predictor: Annotated[str, typer.Argument(metavar="PREDICTOR", help="demand")],
    output: Output = Format.TABLE,
) -> None:
    """Train a predictor."""
