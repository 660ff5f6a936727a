"""SizingProfiles: what dry runs have shown, kept in the cluster beside the jobs, by job type and namespace."""

from collections.abc import Sequence
from dataclasses import dataclass

from kopt.cluster.client.resources import Object, Resource
from kopt.cluster.objects.fields import mapping, text, texts
from kopt.core.redaction import redact, redact_arguments, redact_document
from kopt.core.times import seconds, stamp
from kopt.core.workload.profile import LONGEST_COMMAND, DryRun, normalised_command, read_dry_run

SIZING_PROFILES = Resource("kaiwo.ai", "v1alpha1", "sizingprofiles", "SizingProfile")


@dataclass(frozen=True)
class Learned:
    """One dry run's outcome; ``run`` is None for one that failed, with the reason. ``job_uid`` names its Job.

    ``command`` is what ran, normalised and redacted; empty where it is too long to be kept.
    """

    digest: str
    namespace: str
    run: DryRun | None
    reason: str
    at_s: float
    image_id: str
    job_uid: str
    document: Object
    command: tuple[str, ...] = ()

    @property
    def failed(self) -> bool:
        return self.run is None


def name_of(digest: str) -> str:
    return f"profile-{digest}"


def learned_of(document: Object) -> Learned | None:
    """None for an object that is not ours to read. Raises ValueError for figures that cannot be."""
    spec = mapping(document, "spec")
    digest = text(spec, "jobType")
    if not digest:
        return None
    run = read_dry_run(spec["profile"]) if "profile" in spec else None
    return Learned(
        digest,
        document["metadata"]["namespace"],
        run,
        text(spec, "reason"),
        seconds(text(spec, "measuredAt")),
        text(spec, "image"),
        text(spec, "measuredBy"),
        document,
        texts(spec, "command"),
    )


def document_of(learned: Learned) -> Object:
    """The object for what was learned, ready to be created."""
    spec: Object = {
        "jobType": learned.digest,
        "measuredAt": stamp(learned.at_s),
        "measuredBy": learned.job_uid,
        "image": learned.image_id,
        "reason": redact(learned.reason)[:1024],
    }
    if learned.command:
        spec |= {"command": list(learned.command)}
    if learned.run is not None:
        spec |= {"profile": redact_document(learned.run.to_dict())}
    return {"metadata": {"name": name_of(learned.digest), "namespace": learned.namespace}, "spec": spec}


def kept_command(command: Sequence[str]) -> tuple[str, ...]:
    """A command as a profile keeps it, so that models can be trained on what was measured after its Job is gone."""
    result = redact_arguments(normalised_command(command))
    return result if sum(map(len, result)) <= LONGEST_COMMAND else ()
