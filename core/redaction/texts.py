"""Where secrets stand in texts."""

import re
from collections.abc import Callable, Iterable

from kopt.core.redaction.options import FLAGS_AND_USER, PATHS_FOLLOW, USERS, hides_attached, hides_next
from kopt.core.redaction.values import HIDDEN, NUMBER, VARIABLE, harmless
from kopt.core.secret_names import names_a_secret

_LOOKS_DRAWN = re.compile(r"(?=[^\d\s]*\d)(?=[^a-zA-Z\s]*[a-zA-Z])[\w+/=-]{16,}")
"""What may be a key where a name says no more than ``key``."""
_ACCOUNTS = frozenset({"git", "hg", "svn", "ssh", "root", "user", "admin", "postgres", "mysql", "ubuntu", "anonymous"})

_LONGEST_REMEMBERED, _MOST_REMEMBERED = 256, 4096
_HARMLESS: dict[str, None] = {}
"""Short texts without secrets that were looked at before: keys, reasons and paths come again with every record. No text
with a secret is kept, which a cache of answers would do."""
Span = tuple[int, int]
Finder = Callable[[str, str], Iterable[Span]]
"""Text and the same in lower case → where the secrets in it stand."""


def redact(text: str) -> str:
    """The text with ``***`` for every secret in it. Doing it twice changes nothing.

    >>> redact("saving to s3://me:hunter2@store with api_key=abcdef")
    'saving to s3://***@store with api_key=***'
    """
    if text in _HARMLESS:
        return text
    if secrets := spans(text):
        return without(text, secrets)
    if len(text) <= _LONGEST_REMEMBERED:
        if len(_HARMLESS) >= _MOST_REMEMBERED:
            _HARMLESS.clear()
        _HARMLESS[text] = None
    return text


def spans(text: str) -> list[Span]:
    """Where secrets stand, in any order; they may overlap."""
    low = text.lower()
    if len(low) != len(text):
        low = "".join(letter.lower() if len(letter.lower()) == 1 else letter for letter in text)
    result: list[Span] = []
    for triggers, find_secrets in _RULES:
        for trigger in triggers:
            if trigger in low:
                result += find_secrets(text, low)
                break
    return result


def without(text: str, secrets: list[Span]) -> str:
    pieces, at = [], 0
    for start, end in sorted(secrets):
        if start >= at:
            pieces += [text[at:start], HIDDEN]
        at = max(at, end)
    return "".join((*pieces, text[at:]))


_SCHEME = re.compile(
    r"(?P<scheme>[a-z][a-z0-9+.-]{0,30})://(?P<user>[^\s/@\"'<>?#:]{0,400})(?P<rest>:(?!\d{1,5}/)[^\s\"'<>]{0,1000})?@"
)
_CONTAINERS = frozenset({"abfs", "abfss", "wasb", "wasbs"})
"""What stands before the @ in their addresses is the container's name."""


def _in_urls(text: str, low: str) -> Iterable[Span]:
    for match in _SCHEME.finditer(low):
        user, rest = match["user"], match["rest"]
        if rest is None and (match["scheme"] in _CONTAINERS or user in _ACCOUNTS or user == HIDDEN):
            continue
        yield match.start("user"), match.end() - 1


_HEADER = re.compile(
    r"(?:authorization|proxy-authorization|set-cookie|cookie|x-api-key|x-auth-token|x-amz-security-token|"
    r"ocp-apim-subscription-key)[\"'\\]*\s*[:=]\s*[\"'\\]*(?P<value>[^\"'\r\n]{3,})"
)
_BEARER = re.compile(r"\b(?:bearer|basic|token)\s+(?P<value>[a-z0-9+/_.=~:-]{6,})")


def _in_headers(text: str, low: str) -> Iterable[Span]:
    for match in _HEADER.finditer(low):
        if not harmless("authorization", match["value"]):
            yield match.span("value")


def _bearers(text: str, low: str) -> Iterable[Span]:
    for match in _BEARER.finditer(low):
        value = match["value"]
        if match[0].startswith("bearer") or (any(c.isdigit() for c in value) and not NUMBER.fullmatch(value)):
            # "token 12" and "basic training" are words of a text.
            yield match.span("value")


_NAMED = re.compile(
    r"(?:passw|passphrase|pass(?=[\"'\\\s]*[=:])|pwd|pw(?=[\"'\\]*[=:])|secret|credential|creds|key|token|sig(?:nature)?|auth|"
    r"cookie|dsn|sas|otp|pat|bearer|jwt|webhook|session|connection|conn_?str)[\w-]{0,60}"
    r"(?P<quote>\\*[\"'])?\s*\]?\s*(?P<separator>=>|:=|=|:)\s*"
)
_NAME_BEFORE = re.compile(r"[\w.-]*$")
_QUOTED = re.compile(r"(?P<escape>\\*)(?P<quote>[\"'])")
_BARE = re.compile(r"(?:(?![\"'][\s,}\])]|[\"']$)\S)+")
_BLOCK = re.compile(r"[|>][-+]?\d?[ \t]*(?:\r?\n[ \t]+[^\r\n]*)+")
_LINE = re.compile(r"[^\r\n]+")


def _named(text: str, low: str) -> Iterable[Span]:
    at = 0
    while (match := _NAMED.search(low, at)) is not None:
        at = match.end()
        start = _NAME_BEFORE.search(text, max(0, match.start() - 80), match.start())
        stop = match.start("quote") if match["quote"] else match.start("separator")
        name = text[start.start() if start else match.start() : stop].rstrip(" ]")
        is_key = name.lower().lstrip("-") == "key"
        if not is_key and not names_a_secret(name):
            continue
        span = _value_at(text, at, name, match["separator"])
        value = text[span[0] : span[1]]
        if value and not harmless(name, value) and (not is_key or _LOOKS_DRAWN.fullmatch(value)):
            yield span
            at = span[1]


def _value_at(text: str, at: int, name: str, separator: str) -> Span:
    """Where the value that begins at ``at`` ends: at its closing quote, or at a space."""
    opening = _QUOTED.match(text, at)
    if opening:
        return opening.end(), _closing(text, opening.end(), opening["escape"], opening["quote"])
    block = _BLOCK.match(text, at) if separator == ":" else None
    if block:
        return block.span()
    in_query = "://" in text[max(0, at - 2000) : at] and re.search(r"[?&;][\w.%-]*$", text[max(0, at - 120) : at - 1])
    bare = _BARE.match(text, at)
    if bare is None:
        return at, at
    end = bare.end()
    if in_query:
        end = min(end, *(position for delimiter in "&\"'<>" if (position := text.find(delimiter, at, end)) >= 0), end)
    elif separator == ":" and re.search(r"passw|passphrase|secret", name, re.IGNORECASE):
        line = _LINE.match(text, at)
        end = line.end() if line else end
    while end > at and text[end - 1] in ",;)]}\"'`" and not VARIABLE.fullmatch(text, at, end):
        end -= 1
    return at, end


def _closing(text: str, at: int, escape: str, quote: str) -> int:
    """Where the quote closes that opened before ``at``; the line's end where it does not."""
    closing = escape + quote
    while (end := text.find(closing, at)) >= 0:
        backslashes = len(text[:end]) - len(text[:end].rstrip("\\"))
        if escape or backslashes % 2 == 0:
            return end
        at = end + 1
    line = text.find("\n", at)
    return len(text) if line < 0 else line


_QUERY = re.compile(r"[?&;](?P<name>[\w.%-]{1,60})=(?P<value>[^\s&\"'<>#]+)")


def _in_queries(text: str, low: str) -> Iterable[Span]:
    for match in _QUERY.finditer(text):
        if names_a_secret(match["name"]) and not harmless(match["name"], match["value"]):
            yield match.span("value")


_WORD = r"\"(?:[^\"\\\\]|\\\\.)*\"|'[^']*'|\S+"
_SPACED = re.compile(rf"(?<!\S)[\"']?(?P<name>-{{1,2}}[a-z][\w.-]*)\s+(?P<value>{_WORD})")
_SHORT = re.compile(rf"(?<!\S)(?P<flag>-p|-u|-b)(?P<gap>\s*)(?P<value>{_WORD})")


def _options(text: str, low: str) -> Iterable[Span]:
    for match in _SPACED.finditer(low):
        name = text[match.start("name") : match.end("name")]
        span = _inside(text, match.span("value"))
        if (names_a_secret(name) or name in USERS) and hides_next(name, text[span[0] : span[1]]):
            yield span


def _short_options(text: str, low: str) -> Iterable[Span]:
    for match in _SHORT.finditer(low):
        span = _inside(text, match.span("value"))
        word, flag = text[span[0] : span[1]], match["flag"]
        if match["gap"]:
            hides = hides_next(flag, word) and not PATHS_FOLLOW.search(low[: match.start()])
        else:
            hides = hides_attached(flag, word)
        if hides:
            yield span


_USER_EQUALS = re.compile(rf"(?<![\w-])--(?:proxy-|http-)?(?:user|creds)=(?P<value>{_WORD})")
_FLAGS_THEN_USER = re.compile(rf"(?<!\S)-[a-z#0-9]{{1,8}}u\s+(?P<value>{_WORD})")
_STORE_CLIENT = re.compile(
    rf"(?:redis|valkey|keydb)-cli(?=\s)[^|;&\r\n]{{0,200}}?\s-a\s+(?P<value>{_WORD})",
)


def _users(text: str, low: str) -> Iterable[Span]:
    for match in (*_USER_EQUALS.finditer(low), *_FLAGS_THEN_USER.finditer(low)):
        option = text[match.start() : match.start("value")].rstrip("= \t\r\n")
        span = _inside(text, match.span("value"))
        if (option.startswith("--") or FLAGS_AND_USER.fullmatch(option)) and hides_next(
            "--user", text[span[0] : span[1]]
        ):
            yield span


def _store_clients(text: str, low: str) -> Iterable[Span]:
    for match in _STORE_CLIENT.finditer(low):
        span = _inside(text, match.span("value"))
        if not harmless("password", text[span[0] : span[1]]):
            yield span


def _inside(text: str, span: Span) -> Span:
    """A word without its quotes and without what closes around it."""
    start, end = span
    quoted = text[start] in "\"'" and end - start > 1 and text[end - 1] == text[start]
    return (start + 1, end - 1) if quoted else (start, end)


_STATED = re.compile(
    r"(?:identified\s+by|password)\s+(?P<quote>['\"])(?P<value>.+?)(?P=quote)|"
    r"(?:identified\s+by|(?:role|user)\s+\S+\s+(?:with\s+)?password)\s+(?P<bare>[^\s'\"]\S*)|"
    r"login\s+\S+\s+password\s+(?P<netrc>\S+)|<passw\w*>(?P<xml>[^<]+)<|"
    r"echo\s+(?:-\w+\s+)?(?P<echo>\"[^\"]*\"|'[^']*'|\S+)\s*\|[^|]*-stdin"
)


def _stated(text: str, low: str) -> Iterable[Span]:
    for match in _STATED.finditer(low):
        for group in ("value", "bare", "netrc", "xml", "echo"):
            if match[group] is not None and not harmless("password", match[group]):
                yield match.span(group)


_HEADS = re.compile(
    r"(?<![a-z0-9])(?:"
    r"(?:akia|asia|aroa|aida)[a-z0-9]{12,}|(?:hf|api_org|hfo)_(?=[a-z]*\d)[a-z0-9]{8,}|sk-(?=[a-z_-]*\d)[a-z0-9_-]{12,}|(?:sk|rk|pk)_(?:live|test)_[a-z0-9]{8,}|whsec_[a-z0-9]{8,}|"
    r"gh[pousr]_[a-z0-9]{8,}|github_pat_[a-z0-9_]{8,}|gl(?:pat|ptt|dt|rt|cbt)-[a-z0-9_.-]{8,}|xox[abeoprs]-[a-z0-9-]{8,}|"
    r"xapp-[a-z0-9-]{8,}|aiza[a-z0-9_-]{20,}|ya29\.[a-z0-9_-]{8,}|npm_[a-z0-9]{20,}|pypi-[a-z0-9_-]{16,}|"
    r"dop_v1_[a-z0-9]{16,}|sg\.[a-z0-9_-]{16,}\.[a-z0-9_-]{16,}|nvapi-[a-z0-9_-]{16,}|r8_[a-z0-9]{16,}|"
    r"gsk_[a-z0-9]{16,}|tgp_v1_[a-z0-9_-]{16,}|rpa_[a-z0-9]{16,}|hv[sbr]\.[a-z0-9_-]{16,}|dapi[0-9a-f]{32}|"
    r"shp(?:at|ca|pa|ss)_[a-f0-9]{16,}|lin_api_[a-z0-9]{16,}|figd_[a-z0-9_-]{16,}|sq0[a-z]{3}-[a-z0-9_-]{16,}|"
    r"atatt3x[a-z0-9_=-]{16,}|age-secret-key-1[a-z0-9]{16,}|ltai[a-z0-9]{12,}|akid[a-z0-9]{12,}|"
    r"eyj[a-z0-9_-]{8,}\.[a-z0-9_-]+(?:\.[a-z0-9_-]*){0,3}|\d{8,10}:aa[a-z0-9_-]{30,}|"
    r"key-[0-9a-f]{32}|local-[0-9a-f]{40}"
    r")"
)
_HOOK = re.compile(
    r"hooks\.slack\.com/(?:services|workflows)/(?P<slack>\S+)|discord(?:app)?\.com/api/webhooks/(?P<discord>\S+)"
)
_PEM = re.compile(r"-----begin [a-z0-9 ]*private key[a-z ]*-----(?P<body>.*?)(?:-----end|\Z)", re.DOTALL)


def _heads(text: str, low: str) -> Iterable[Span]:
    for match in _HEADS.finditer(low):
        yield match.span()


def _hooks(text: str, low: str) -> Iterable[Span]:
    for match in _HOOK.finditer(low):
        yield match.span("slack" if match["slack"] else "discord")


def _keys(text: str, low: str) -> Iterable[Span]:
    for match in _PEM.finditer(low):
        yield match.span("body")


_HEAD_TRIGGERS = (
    "akia",
    "asia",
    "aroa",
    "aida",
    "hf_",
    "api_org_",
    "hfo_",
    "sk-",
    "_live_",
    "_test_",
    "whsec_",
    "ghp_",
    "gho_",
    "ghu_",
    "ghs_",
    "ghr_",
    "github_pat_",
    "glpat-",
    "glptt-",
    "gldt-",
    "glrt-",
    "glcbt-",
    "xox",
    "xapp-",
    "aiza",
    "ya29.",
    "npm_",
    "pypi-",
    "dop_v1_",
    "sg.",
    "nvapi-",
    "r8_",
    "gsk_",
    "tgp_v1_",
    "rpa_",
    "hvs.",
    "hvb.",
    "hvr.",
    "dapi",
    "sk_live",
    "sk_test",
    "shpat_",
    "shpca_",
    "shppa_",
    "shpss_",
    "lin_api_",
    "figd_",
    "sq0",
    "atatt3x",
    "age-secret",
    "ltai",
    "akid",
    "eyj",
    ":aa",
    "key-",
    "local-",
    "pk-",
    "rk-",
    "whsec-",
)
_NAME_TRIGGERS = (
    "pass",
    "pwd",
    "pw",
    "secret",
    "cred",
    "key",
    "token",
    "sig",
    "auth",
    "cookie",
    "dsn",
    "sas",
    "otp",
    "pat",
    "bearer",
    "jwt",
    "webhook",
    "session",
    "conn",
)
_RULES: tuple[tuple[tuple[str, ...], Finder], ...] = (
    (("://",), _in_urls),
    (("authorization", "cookie", "x-api-key", "x-auth-token", "security-token", "subscription-key"), _in_headers),
    (("bearer ", "basic ", "token "), _bearers),
    (("?", "&"), _in_queries),
    (_NAME_TRIGGERS, _named),
    ((" -", "\t-", "-"), _options),
    (("-p", "-u", "-b"), _short_options),
    (("user=", "creds=", "u ", "u\t"), _users),
    (("redis-cli", "valkey-cli", "keydb-cli"), _store_clients),
    (("identified", "password", "<passw", "-stdin"), _stated),
    (_HEAD_TRIGGERS, _heads),
    (("hooks.slack", "webhooks/"), _hooks),
    (("private key",), _keys),
)
