"""Corrects annotations that name other GPUs than the pod has: nobody may go by what its node did not follow."""

import logging

from kopt.cluster.client.api import ApiError, Conflict, Kube, NotFound
from kopt.cluster.client.resources import PODS, Object
from kopt.cluster.objects.annotations import INDICES_ANNOTATION
from kopt.cluster.runtime.audit import audit_write
from kopt.controllers.extender.allocated import Allocated, Correction

_LOG = logging.getLogger(__name__)


async def correct_annotations(kube: Kube, allocated: Allocated) -> None:
    """Write what is to be corrected; what cannot be written now stays for the next time."""
    for correction in list(allocated.corrections.values()):
        try:
            await _correct(kube, correction)
        except (NotFound, Conflict):
            pass
        except ApiError as error:
            _LOG.info("the GPUs of pod %s/%s are corrected later: %s", *correction.pod, error)
            continue
        allocated.corrections.pop(correction.uid, None)


async def _correct(kube: Kube, correction: Correction) -> None:
    namespace, name = correction.pod
    annotations = {INDICES_ANNOTATION: ",".join(map(str, correction.gpus))}
    # The uid keeps a pod that was made anew under its name from being written to.
    changes: Object = {"metadata": {"uid": correction.uid, "annotations": annotations}}
    await kube.patch(PODS, name, changes, namespace)
    metadata = {"name": name, "namespace": namespace, "uid": correction.uid}
    audit_write("patch", PODS, metadata, after={"gpus": list(correction.gpus)})
