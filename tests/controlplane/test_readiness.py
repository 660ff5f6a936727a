"""A control plane that does not become ready says which of its checks failed."""

import httpx
import pytest
from controlplane.plane import require_ready
from controlplane.processes import NotReady, wait_for

# As an overloaded API server answers /readyz?verbose.
OVERLOADED = """[+]ping ok
[+]etcd ok
[-]poststarthook/rbac/bootstrap-roles failed: reason withheld
[-]shutdown failed: reason withheld
readyz check failed
"""


def test_ready_is_true() -> None:
    assert require_ready(httpx.Response(200, text="[+]ping ok\nreadyz check passed\n"))


def test_the_failing_checks_are_in_the_message() -> None:
    with pytest.raises(NotReady, match="failing checks: poststarthook/rbac/bootstrap-roles, shutdown"):
        wait_for(lambda: require_ready(httpx.Response(500, text=OVERLOADED)), timeout_s=0)


def test_an_answer_without_checks_is_quoted() -> None:
    with pytest.raises(ValueError, match=r"Unauthorized \(HTTP 401\)"):
        require_ready(httpx.Response(401, text="Unauthorized"))
