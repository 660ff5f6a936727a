"""What would run? From a command line, a script, a notebook, a pod or a Dockerfile to one entrypoint.

Read only, never executed, in time that is linear in the input; whatever cannot be known is said in
``Entrypoint.unknown``, and what cannot be read at all raises ``EntrypointError``.
"""

from kopt.formats.entrypoint.containers import dockerfile_entrypoint, pod_entrypoint
from kopt.formats.entrypoint.entrypoint import Entrypoint, EntrypointError, Kind
from kopt.formats.entrypoint.launchers import what_runs
from kopt.formats.entrypoint.notebook import notebook_source
from kopt.formats.entrypoint.script import ScriptFacts, read_script
from kopt.formats.entrypoint.variables import TORCHRUN_PREFIX

__all__ = [
    "TORCHRUN_PREFIX",
    "Entrypoint",
    "EntrypointError",
    "Kind",
    "ScriptFacts",
    "dockerfile_entrypoint",
    "notebook_source",
    "pod_entrypoint",
    "read_script",
    "what_runs",
]
