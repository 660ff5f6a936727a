"""Which names say that their value is a secret: ``HF_TOKEN``, ``db.password``, not ``max_tokens``."""

import re
from functools import lru_cache

_PARTS = re.compile(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])|\d+")
_ANYWHERE = re.compile(
    r"passwo?rd|passphrase|passwd|secret|credential|api_?key|access_?key|private_?key|account_?key|signing_?key|"
    r"encryption_?key|auth_?key|license_?key|shared_?key|master_?key|session_?(?:key|id)|storage_?key|service_?key|"
    r"ssh_?key|connection_?str|conn_?str|bearer|jwt|webhook"
)
_LAST = frozenset(
    {
        "pass",
        "pw",
        "pwd",
        "pswd",
        "token",
        "sig",
        "signature",
        "auth",
        "authorization",
        "cookie",
        "dsn",
        "sas",
        "otp",
        "authtoken",
        "accesstoken",
        "hftoken",
        "apitoken",
        "pat",
        "creds",
        "userpwd",
        "userpass",
        "pgpassword",
    }
)
_ELSEWHERE = frozenset(
    {
        "file",
        "files",
        "path",
        "dir",
        "folder",
        "name",
        "names",
        "ref",
        "length",
        "len",
        "size",
        "count",
        "type",
        "env",
        "stdin",
        "policy",
        "enabled",
        "expiry",
        "ttl",
        "required",
        "strength",
        "class",
        "backend",
        "provider",
        "store",
        "manager",
        "version",
        "algorithm",
        "mode",
        "prompt",
        "field",
        "column",
        "rotation",
        "days",
    }
)
"""A name that ends so is about a secret, and its value is none: ``--password-file``, ``secretName``."""
_TOKENS_OF_TEXT = frozenset(
    {
        "bos",
        "eos",
        "pad",
        "unk",
        "mask",
        "sep",
        "cls",
        "image",
        "video",
        "audio",
        "special",
        "added",
        "additional",
        "next",
        "per",
        "num",
        "max",
        "min",
        "new",
        "last",
        "first",
        "prompt",
        "output",
        "input",
        "end",
        "start",
        "stop",
        "begin",
        "fim",
        "think",
        "seconds",
        "ms",
        "loss",
        "tool",
        "patch",
        "class",
        "placeholder",
        "decoder",
        "prefix",
        "suffix",
        "middle",
        "newline",
        "space",
        "blank",
        "lang",
        "language",
        "src",
        "tgt",
        "user",
        "assistant",
        "system",
    }
)
"""What stands before a language model's tokens; ``user_token`` is one of a chat template's as well."""
_AMBIGUOUS_TOKENS = frozenset({"user", "system", "tool", "space", "lang"})


@lru_cache(maxsize=8192)
def names_a_secret(name: str) -> bool:
    """Whether a variable, option, key or header of this name holds a secret."""
    parts = [part.lower() for part in _PARTS.findall(name[-200:])]
    while parts and parts[-1].isdigit():
        parts.pop()
    if not parts or parts[-1] in _ELSEWHERE:
        return False
    if _ANYWHERE.search("_".join(parts)) or _ANYWHERE.search("".join(parts)):
        return True
    if parts[-1] == "token" and len(parts) > 1 and parts[-2] in _TOKENS_OF_TEXT - _AMBIGUOUS_TOKENS:
        return False
    return parts[-1] in _LAST
