"""A message → the numbers of its words: what the line classifier sees.

Words are seen whole and by their parts (subword hashing as in Bojanowski et al., "Enriching Word Vectors with Subword
Information", 2017), beside which word stands next to which. Numbers, bars and rules are seen by their shape only, so
that lines of one kind are one template, whatever they count.
"""

import re
import zlib
from functools import lru_cache

from kopt.formats.joblog import Message
from kopt.models.checkpoint.classifier.text_shape import shape_of, text_of

ROWS = 1 << 15
"""Of the table of vectors; words and parts share rows by their hash. Row 0 is nothing."""
_MOST_TOKENS, _KEPT_LAST = 72, 24
_LOOKED_AT, _LOOKED_AT_END = 480, 240
_NUMBER = re.compile(r"\d+")
# Where a file lies says nothing; what it is called does.
_FOLDERS = re.compile(r"(?:[\w.\-+=:~@,%]*[/\\]+){2,}")
_PATH = re.compile(r"""["'`]?(?:[A-Za-z]:)?[^\s"'`()\[\]]*[/\\][^\s"'`()\[\]]*["'`]?""")
_RUN = re.compile(r"([=━#.*\-_~╸> ])\1{2,}")
_BLOCKS = re.compile("█+")
_PARTIAL_BLOCKS = str.maketrans("▏▎▍▌▋▊▉▇▓░", "██████████")
_TOKEN = re.compile(r"[A-Z]?[a-z]+|[A-Z]+|0(?:[.:,]0)*(?:e[+-]?0)?|[^\W\dA-Za-z_]+|_|[^\w\s]+")
_TELLING = r"epoch|step|iter|eval|val|test|save|saving|ckpt|checkpoint|load|sync|batch|error|fatal|critical|\d ?/ ?\d|%"
_LEVEL = r"(?:INFO|DEBUG|WARN(?:ING)?|NOTICE|TRACE|info|debug|warn(?:ing)?)"
_FRONT = re.compile(
    r"(?:\[\s?[@\w./\-]{1,60}(?:\.(?:py|cc|cpp|go):\d+[^\]]{0,60}|(?:\.\w{1,40}){1,5}(?::\d+)?)\]:?\s*"
    # Names of hosts, processes and loggers in front of a level, however they are set apart.
    rf"|(?:\(?(?=[a-zA-Z\-]{{0,60}}[\d.:_])[\w.\-:/]{{1,120}}+\)?[ \t]{{1,4}}+){{1,3}}(?=[|\[(]?{_LEVEL}[\])]?[:|\s])"
    rf"|\[(?![^\]]*(?:{_TELLING}))[^\]]{{0,80}}\]:?\s*"
    rf"|{_LEVEL}\b(?:[:|]|(?=\s|$))\s*(?:[\w.\-/]{{1,60}}:)?\s*"
    r"|@?[\w.\-/]{1,60}\.(?:py|cc|cpp|go):\d+\]?:?\s*"
    r"|[\w.\-]{1,40}\[\d{1,8}\]\[\w{1,40}\]:\s*"
    rf"|[\w.\-]{{1,60}}(?=\s+[-|]\s+{_LEVEL}\b)\s*"
    rf"|(?<=[-|] )[\w.\-]{{1,60}}(?:[:.]\w{{1,40}}){{0,3}}(?=\s+[-|]\s)\s*"
    r"|\d{1,18}(?=\s+[\w.]+:\d+\])\s*|(?:>>|[-|>:]{1,2}(?=\s))\s*)+",
)
# A bar does not end with a newline, so the next message follows it on the same line.
_BAR = re.compile(rf"(?<=[a-z])/(?:s|it|ba|batch|step)[^\]]{{0,200}}\]\s*(?=\[\w+\||[-|]?\s*{_LEVEL}\b)")
_STAMP_IN_FRONT, _FAR = 3, 12
_IDEOGRAM = 0x2E80


def spoken(message: Message) -> str:
    """The message without its time and the prefixes of loggers: level, logger, file, process.

    Errors keep their level because it is informative. A bar in front stays, too, if nothing follows it.
    """
    stamp = message.stamp
    text = message.text[: stamp.start] + message.text[stamp.end :] if stamp else message.text
    if stamp and stamp.start < _STAMP_IN_FRONT:
        text = text.lstrip()
    bar = _BAR.search(text) if "/" in text and "]" in text else None
    indent = len(text) - len(text.lstrip(" "))
    start = bar.end() if bar else indent if indent >= _FAR else 0
    front = _FRONT.match(text, start)
    return text[front.end() :] if front and start < front.end() < len(text) else text


def template(text: str) -> str:
    """The text without what differs between lines of one kind.

    >>> template("step 120/5000 loss 1.25e-3 |██████▌   |") == template("step 9/300 loss 7.5e-11 |███     |")
    True
    """
    if len(text) > _LOOKED_AT + _LOOKED_AT_END:
        text = f"{text[:_LOOKED_AT]} … {text[-_LOOKED_AT_END:]}"
    return _template(shape_of(text))


def without_paths(template: str) -> str:
    """A template of lines about files whose names differ from save to save.

    >>> without_paths("Saved '/best-0.pt' (0 MB)") == without_paths("Saved out/last.pt (0 MB)")
    True
    """
    return _PATH.sub("/", template) if "/" in template or "\\" in template else template


@lru_cache(maxsize=8192)
def _template(shape: bytes) -> str:
    text = text_of(shape)
    if not text.isascii():
        text = _BLOCKS.sub("█", text.translate(_PARTIAL_BLOCKS))
    if text.count("/") + text.count("\\") > 1:
        text = _FOLDERS.sub("/", text)
    return _RUN.sub(r"\1\1\1", _NUMBER.sub("0", text))


def tokens(text: str) -> list[str]:
    """A template's words, numbers' shapes and marks, and in front what the line looks like as a whole."""
    result = _TOKEN.findall(text)
    if len(result) > _MOST_TOKENS:
        result = result[: _MOST_TOKENS - _KEPT_LAST] + result[-_KEPT_LAST:]
    normalised = [word.lower() if word[0].isalpha() else word[:4] for word in result]
    indent = min(4, (len(text) - len(text.lstrip(" \t"))) // 2)
    spoken = sum(word[0].isalpha() for word in normalised)
    numbers = sum(word[0] == "0" for word in normalised)
    return [f"\0indent{indent}", f"\0words{min(9, spoken // 2)}", f"\0numbers{min(6, numbers)}", *normalised]


def bigrams(line: list[str]) -> list[str]:
    """Neighbours, the line's ends among them."""
    spoken = line[3:]
    return [f"{name} {other}" for name, other in zip(["^", *spoken], [*spoken, "$"], strict=True)]


@lru_cache(maxsize=65536)
def parts_of_word(word: str) -> tuple[int, ...]:
    """The numbers of a word and of the pieces of it that stand for words like it."""
    parts = ["w" + word]
    if word[0].isalpha():
        if ord(word[0]) >= _IDEOGRAM:
            parts += ["z" + word[i : i + n] for n in (1, 2, 3) for i in range(len(word) - n + 1)]
        elif len(word) > 3:
            marked = f"<{word[:24]}>"
            parts += ["c" + marked[i : i + n] for n in (3, 4, 5) for i in range(len(marked) - n + 1)]
    return tuple(map(_number, parts))


def parts_of_pair(pair: str) -> tuple[int, ...]:
    """The number of two neighbours."""
    return (_number("b" + pair),)


def row_of(part: int) -> int:
    """The row of the table that a part's vector stands in; a token's vector is the mean of its parts'."""
    return part % (ROWS - 1) + 1


def _number(text: str) -> int:
    return zlib.crc32(text.encode("utf-8", "replace"))
