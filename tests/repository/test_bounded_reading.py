"""JSON that others wrote is read by the one reader with bounds: whoever reads it otherwise says here why they may."""

from documents import ROOT

READERS = ("agents", "cluster", "controllers", "core", "policies", "dashboard")
MAY = {
    "core/untrusted.py": "the reader itself",
    "cluster/objects/definitions.py": "definitions that this package brings",
    "core/staging/manifest.py": "manifests of any number of files, which our own downloads write",
    "cluster/client/connection.py": "what the API server answers",
    "cluster/admission/review.py": "what the API server asks, within the server's bounds",
    "controllers/extender/node_list.py": "what the scheduler asks, within the server's bounds",
    "controllers/extender/protocol.py": "what the scheduler asks, within the server's bounds",
    "agents/logtail/records.py": "each line of a log, by a reader that takes neither infinity nor deep nesting",
    "agents/logtail/offset_store.py": "the agent's own file, with a checksum",
    "controllers/autoscaling/front_proxy.py": "what the API server publishes, by a reader with such bounds",
    "dashboard/login/oidc.py": "the note of a login, which the pages encrypted",
    "dashboard/login/sessions.py": "what the pages themselves encrypted, of a cookie's length at most",
    "cluster/client/prometheus.py": "Prometheus' answers of 64 MiB at most, by a reader with such bounds",
}


def test_json_of_others_is_read_within_bounds() -> None:
    found = {
        path.relative_to(ROOT).as_posix()
        for folder in READERS
        for path in (ROOT / folder).rglob("*.py")
        if "json.loads(" in path.read_text(encoding="utf-8")
    }
    assert found == set(MAY)
