"""``kopt simulate partitions``: the document that others read, and clear errors."""

import pytest

from tests.cli.conftest import Kopt

_MIX = "1g.10gb=.5,3g.40gb=.3,7g.80gb=.2"
_FEW = ("--gpus", "5", "--requests", "300", "--seeds", "1-2", "--workers", "1")


def test_the_document_has_shares_by_seed_and_their_means(kopt: Kopt) -> None:
    done = kopt("simulate", "partitions", "--model", "h100-80gb", "--mix", _MIX, *_FEW, "--moves", ".05", "-o", "json")
    assert done.status == 0, done.err
    document = done.json
    assert document["policy"] == "kopt"
    assert document["seeds"] == [1, 2]
    for name in ("accepted", "slices_used", "moves_per_request"):
        assert document["mean"][name] == pytest.approx(sum(document[name]) / 2)
    assert 0.5 < document["mean"]["accepted"] <= 1


def test_policies_stand_side_by_side(kopt: Kopt) -> None:
    done = kopt("simulate", "partitions", "--model", "a30", "--mix", "1g.6gb=1", *_FEW, "--policy", "all")
    assert done.status == 0, done.err
    assert "first-fit" in done.out
    assert "kopt" in done.out


@pytest.mark.parametrize(
    ("options", "status", "message"),
    [
        (("--model", "v100", "--mix", "1g.10gb=1"), 1, "cannot be partitioned by MIG"),
        (("--model", "h999", "--mix", "1g.10gb=1"), 1, "no GPU model"),
        (("--model", "h100-80gb", "--mix", "1g.5gb=1"), 1, "has no partitions '1g.5gb'; there are 1g.10gb"),
        (("--model", "h100-80gb", "--mix", "1g.10gb"), 2, "is no share"),
        (("--model", "h100-80gb", "--mix", "1g.10gb=0"), 2, "a mix needs a profile"),
        (("--model", "h100-80gb", "--mix", _MIX, "--policy", "best"), 2, "no policy 'best'; there are kopt"),
        (("--model", "h100-80gb", "--mix", _MIX, "--load", "0"), 2, "a load of 0"),
    ],
)
def test_what_cannot_be_is_said(kopt: Kopt, options: tuple[str, ...], status: int, message: str) -> None:
    done = kopt("simulate", "partitions", *options, *_FEW)
    assert done.status == status
    assert message in " ".join((done.err + done.out).split()).replace("│ ", "")
