"""Takes secrets out of whatever is stored or shown: log lines, commands, environments, documents, URLs, errors.

One place for all of it, so that a form of secret that is learned here is hidden everywhere. Two ways of knowing one:
by its head (``AKIA…``, ``hf_…``, a JWT, a private key) and by its place (behind a name that says so, in a URL's user
part or query, behind ``Authorization``, ``-p`` or ``-u``). What has neither cannot be known, and text that only looks
odd (digests, identifiers, learning rates) stays readable.

Heads follow the public formats of the services; names are in ``core.secret_names``. Most lines hold none of the words
that a secret needs around it: those are looked for first, in a few microseconds, and only their own patterns run.
"""

from kopt.core.redaction.arguments import redact_arguments
from kopt.core.redaction.documents import redact_document
from kopt.core.redaction.texts import redact
from kopt.core.redaction.values import HIDDEN

__all__ = ["HIDDEN", "redact", "redact_arguments", "redact_document"]
