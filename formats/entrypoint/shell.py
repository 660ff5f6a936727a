"""Shell text to simple commands: words, quotes, variables, arrays, ``&&``; nothing is ever executed.

Covers what launch scripts use. What depends on running something (``$(…)``, loops, conditions) becomes a reason, and
the commands inside branches count as if they all ran. Time and memory are bounded by the limits below.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import PurePosixPath

from kopt.core.reason import Reason
from kopt.formats.entrypoint.arithmetic import whole_number
from kopt.formats.entrypoint.entrypoint import EntrypointError

MAX_TEXT_CHARACTERS = 1 << 18
_MAX_WORD_CHARACTERS = 1 << 16
_MAX_TOKENS = 20_000
_MAX_TEXTS = 100
_MAX_CALCULATION = 200
_UNSPECIAL = re.compile(r"[^'\"\\$`]+")
_ASSIGNMENT = re.compile(r"(?:export\s+)?([A-Za-z_]\w*)(\+?)=")
_OPERATORS = ("&&", "||", ";;", ";", "|", "&", "\n")
_KEYWORDS = {
    "if",
    "then",
    "elif",
    "else",
    "fi",
    "for",
    "while",
    "until",
    "do",
    "done",
    "case",
    "esac",
    "function",
    "{",
    "}",
    "!",
    "time",
    "in",
    "select",
}
_PLACEHOLDER = re.compile(r"<[A-Za-z][\w./-]*>(?=\s|$)")
"""What documents write for a value that readers fill in: ``--model <your-model>``; no redirection looks like it."""
_VALUE_GAP = re.compile(r"(?<==)<[A-Za-z][\w./, -]{0,80}>")
"""The same behind a name, where it may have spaces: ``DATA_PATH=<Specify path and prefix>``."""
_DECLARATIONS = {"export", "local", "declare", "readonly", "typeset"}


@dataclass(frozen=True)
class Command:
    """One simple command and the variables set for it alone."""

    argv: tuple[str, ...]
    env: Mapping[str, str]


@dataclass
class Shell:
    """Variables of a script as far as they can be known; ``exported`` are those that commands see."""

    variables: dict[str, tuple[str, ...]] = field(default_factory=dict)
    exported: dict[str, str] = field(default_factory=dict)
    positional: tuple[str, ...] = ()
    script: str = ""
    """The path of the file that is read; empty where it is none, or not known which."""
    entered: list[str] = field(default_factory=list)
    """Folders that ``cd`` was given, in order, whether they exist or not; ``-`` is the one before."""
    brackets: list[int] = field(default_factory=list)
    """How many were entered at each bracket that is open: what a subshell enters ends with it."""
    unknown: dict[str, Reason] = field(default_factory=dict)
    remaining_texts: list[int] = field(default_factory=lambda: [_MAX_TEXTS])
    """How many more scripts may be read, counted over all shells within shells."""

    def inner(self, exported: Mapping[str, str]) -> "Shell":
        """A shell that this one starts.

        Raises:
            EntrypointError: scripts that start scripts without end.
        """
        self.count_text()
        return Shell(
            exported=dict(exported),
            entered=list(self.entered),
            unknown=self.unknown,
            remaining_texts=self.remaining_texts,
        )

    def close_brackets(self, count: int) -> None:
        """Leaves ``count`` subshells, and what was entered in them."""
        for _ in range(min(count, len(self.brackets))):
            del self.entered[self.brackets.pop() :]

    def count_text(self) -> None:
        """One more text is read as commands. Raises EntrypointError beyond what scripts have."""
        self.remaining_texts[0] -= 1
        if self.remaining_texts[0] < 0:
            raise EntrypointError(f"more than {_MAX_TEXTS} scripts start each other; give the command that trains")

    def doubt(self, code: str, message: str) -> None:
        self.unknown.setdefault(code + message, Reason(code, message))

    def value(self, name: str) -> tuple[str, ...] | None:
        if name in ("@", "*"):
            return self.positional
        if name == "#":
            return (str(len(self.positional)),)
        if name.isdecimal():
            # Longer numbers name no argument, and Python refuses to read some of them.
            at = int(name[:6]) - 1
            return (self.positional[at],) if 0 <= at < len(self.positional) else None
        return self.variables.get(name, (self.exported[name],) if name in self.exported else None)


def commands(text: str, shell: Shell) -> Iterator[Command]:
    """The simple commands of ``text`` in order, with variables filled in; assignments update ``shell``.

    Raises:
        EntrypointError: too long, a NUL byte, or quotes that do not end.
    """
    check(text)
    budget = _MAX_TOKENS
    for raw in _statements(text):
        statement = _Statement(shell)
        for token in raw:
            budget -= statement.consume(token)
            if budget < 0:
                raise EntrypointError(
                    f"more than {_MAX_TOKENS:,} words; give the command that trains, not the whole script"
                )
        command = statement.finish()
        if command is not None:
            yield command
        shell.close_brackets(statement.closed)


class _Statement:
    """One statement while its raw words come in."""

    def __init__(self, shell: Shell) -> None:
        self._shell = shell
        self._argv: list[str] = []
        self._env: dict[str, str] = {}
        self._list: tuple[str, list[str]] | None = None
        self._declares = False
        self.closed = 0
        """Brackets that end with this statement, after its command."""

    def consume(self, token: str) -> int:
        """Adds a raw word; how much it counts against the limit."""
        if self._list is not None:
            self._consume_list_word(*self._list, token)
        elif token == "(":
            self._shell.brackets.append(len(self._shell.entered))
        elif token == ")":
            self.closed += 1
        elif not self._argv and token == "$":
            pass  # the prompt of a document's shell
        elif not self._argv and token in _KEYWORDS:
            if token in ("if", "for", "while", "case"):
                self._shell.doubt("BRANCHES", f"commands inside '{token}' are taken as if all of them ran")
        elif not self._argv and token in _DECLARATIONS:
            self._declares = True
        elif not self._argv and (match := _ASSIGNMENT.match(token)):
            self._assign(match[1], match[2] == "+", token[match.end() :])
        elif not self._declares:
            result = expand(token, self._shell)
            self._argv += result
            return 1 + len(result)
        return 1

    def _consume_list_word(self, name: str, elements: list[str], token: str) -> None:
        if token == ")":
            self._shell.variables[name] = tuple(elements)
            self._list = None
        else:
            elements.extend(expand(token, self._shell))
            if len(elements) > _MAX_TOKENS:
                raise EntrypointError("lists grow beyond any command line; give the command with its values filled in")

    def _assign(self, name: str, adds: bool, raw: str) -> None:
        before = (self._shell.value(name) or ()) if adds else ()
        if raw == "(":
            self._list = (name, list(before))
        else:
            self._env[name] = "".join(before) + " ".join(expand(raw, self._shell, quoted=True))

    def finish(self) -> Command | None:
        """The command, None where the statement only set variables."""
        if self._argv:
            return Command(tuple(self._argv), self._env)
        self._shell.variables |= {name: (value,) for name, value in self._env.items()}
        if self._declares:
            self._shell.exported |= self._env
        return None


def check(text: str) -> None:
    """Refuses text that no launch command looks like, before anything walks over it."""
    if len(text) > MAX_TEXT_CHARACTERS:
        raise EntrypointError(f"{len(text):,} characters are no launch command; give at most {MAX_TEXT_CHARACTERS:,}")
    if "\0" in text:
        raise EntrypointError("the text holds NUL bytes; give a command line, a script or a manifest")


def _statements(text: str) -> Iterator[list[str]]:
    """Raw words (quotes still in) between operators. Redirections and here-documents fall away."""
    tokens: list[str] = []
    at, end, here = 0, len(text), ""
    while at < end:
        char = text[at]
        if char in " \t\r":
            at += 1
        elif text.startswith("\\\n", at) or text.startswith("\\\r\n", at):
            at = text.index("\n", at) + 1
        elif char == "#":
            result = text.find("\n", at)
            at = end if result < 0 else result
        elif operator := next((op for op in _OPERATORS if text.startswith(op, at)), None):
            at += len(operator)
            if operator == "\n" and here:
                start, at = at, _after_here_document(text, at, here)
                tokens = _read_into(tokens, text[start:at], here)
                here = ""
            yield tokens
            tokens = []
        elif char == "<" and (gap := _PLACEHOLDER.match(text, at)) is not None:
            at = gap.end()
            tokens.append(f"'{gap[0]}'")
        elif char in "<>":
            redirection = re.compile(r"<<-?[ \t]*['\"]?([\w.]+)|[<>]+&?[ \t]*(?:\d+|-)?").match(text, at)
            assert redirection is not None
            here = redirection[1] or here
            at = redirection.end()
            if not redirection[1] and not redirection[0].rstrip().endswith(tuple("0123456789-")):
                at = _skip_word(text, at)
            elif redirection[1]:
                at += text.startswith(("'", '"'), at)
        elif char in "()":
            tokens.append(char)
            at += 1
        else:
            at, word = _word(text, at)
            if not (word.isdigit() and text[at : at + 1] in ("<", ">") and text[at : at + 1]):
                tokens.append(word)
            if text.startswith("(", at) and _ASSIGNMENT.fullmatch(word):
                tokens[-1] += "("
                at += 1
                at = _array_tokens(text, at, tokens)
    yield tokens


def _read_into(tokens: list[str], document: str, delimiter: str) -> list[str]:
    """``read NAME`` with a here-document sets the variable to its words; other commands stay as they are."""
    if tokens[:1] != ["read"] or not _NAME.fullmatch(tokens[-1]):
        return tokens
    lines = document.rstrip("\n").split("\n")
    content = "\n".join(lines[:-1] if lines[-1].strip() == delimiter else lines)
    return [f'{tokens[-1]}="' + content.replace('"', '\\"') + '"']


def _array_tokens(text: str, at: int, tokens: list[str]) -> int:
    """The words of ``NAME=( … )``, over line ends and comments, up to and including the bracket."""
    end = len(text)
    while at < end:
        char = text[at]
        if char in " \t\r\n":
            at += 1
        elif text.startswith("\\\n", at):
            at += 2
        elif char == "#":
            at = _after_line(text, at)
        elif char == ")":
            tokens.append(")")
            return at + 1
        elif char in "(;&|<>":
            tokens.append(char)
            at += 1
        else:
            at, word = _word(text, at)
            tokens.append(word)
    raise EntrypointError("a list in brackets does not end; check the brackets and quotes of the script")


def _after_line(text: str, at: int) -> int:
    result = text.find("\n", at)
    return len(text) if result < 0 else result + 1


def _after_here_document(text: str, at: int, delimiter: str) -> int:
    while at < len(text):
        end = _after_line(text, at)
        if text[at:end].strip() == delimiter:
            return end
        at = end
    return at


def _skip_word(text: str, at: int) -> int:
    while at < len(text) and text[at] in " \t":
        at += 1
    return _word(text, at)[0] if at < len(text) and text[at] not in "\n;&|()<>" else at


def _word(text: str, at: int) -> tuple[int, str]:
    """Where the word that starts at ``at`` ends, and its raw text."""
    start, end = at, len(text)
    while at < end and (text[at] not in " \t\r\n;&|()<>" or (gap := _gap(text, at)) is not None):
        char = text[at]
        if char == "<":
            assert gap is not None
            at = gap.end()
        elif char == "\\":
            at += 2
        elif char in "'\"`":
            at = _after_quote(text, at)
        elif text.startswith(("$(", "${"), at):
            at = _after_bracket(text, at + 1)
        else:
            at += 1
    return min(at, end), text[start : min(at, end)]


def _gap(text: str, at: int) -> re.Match[str] | None:
    return _PLACEHOLDER.match(text, at) or _VALUE_GAP.match(text, at)


def _after_quote(text: str, at: int) -> int:
    quote = text[at]
    position = at + 1
    while position < len(text):
        if text[position] == "\\" and quote != "'":
            position += 2
        elif text[position] == quote:
            return position + 1
        else:
            position += 1
    raise EntrypointError(f"a quote ({quote}) at character {at} does not end; check the quotes of the command")


def _after_bracket(text: str, at: int) -> int:
    closing = {"(": ")", "{": "}"}[text[at]]
    opening, depth = text[at], 0
    for position in range(at, len(text)):
        depth += (text[position] == opening) - (text[position] == closing)
        if depth == 0:
            return position + 1
    raise EntrypointError(f"a bracket ({opening}) at character {at} does not end; check the brackets of the command")


def expand(raw: str, shell: Shell, *, quoted: bool = False) -> list[str]:
    """The words that one raw word stands for: quotes removed, variables filled in, lists spread."""
    expanded = [""]
    started = False
    position = 0
    inside = quoted
    literal_quote = False
    while position < len(raw):
        char = raw[position]
        if char == "'" and not literal_quote:
            end = _after_quote(raw, position)
            expanded[-1] += raw[position + 1 : end - 1]
            started, position = True, end
        elif char == '"':
            inside, literal_quote, started = not inside or quoted, not literal_quote, True
            position += 1
        elif char == "\\" and position + 1 < len(raw):
            expanded[-1] += "" if raw[position + 1] == "\n" else raw[position + 1]
            started, position = True, position + 2
        elif char in "$`":
            position, parts = _expansion(raw, position, shell)
            spread = parts if literal_quote or quoted else [piece for part in parts for piece in part.split()]
            if literal_quote and len(parts) > 1 and "*" in raw and "@" not in raw:
                spread = [" ".join(parts)]
            if spread:
                expanded[-1] += spread[0]
                expanded += spread[1:]
                started = True
        else:
            plain = _UNSPECIAL.match(raw, position)
            end = plain.end() if plain else position + 1
            expanded[-1] += raw[position:end]
            started, position = True, end
        if len(expanded[-1]) > _MAX_WORD_CHARACTERS or len(expanded) > _MAX_TOKENS:
            raise EntrypointError("variables grow beyond any command line; give the command with its values filled in")
    return expanded if started else []


_BRACED = re.compile(r"\$\{(#?)([A-Za-z_]\w*|\d+|[@*#])(\[[@*]\])?(?::?([-=+?])(.*))?\}", re.DOTALL)
_PLAIN = re.compile(r"\$([A-Za-z_]\w*|\d|[@*#?$!])")


def _expansion(raw: str, at: int, shell: Shell) -> tuple[int, Sequence[str]]:
    """The values of the expansion at ``at``, and where it ends."""
    if raw[at] == "`" or raw.startswith("$(", at):
        end = _after_quote(raw, at) if raw[at] == "`" else _after_bracket(raw, at + 1)
        if raw.startswith("`#", at):
            return end, ()  # how scripts write a comment between the lines of one command
        if (number := _computed(raw[at:end], shell)) is not None:
            return end, (str(number),)
        if shell.script and (folder := _OWN_FOLDER.fullmatch(raw, at, end)) is not None:
            return end, (str(PurePosixPath(shell.script).parent) + (folder["above"] or folder["further"] or ""),)
        shell.doubt("COMMAND_OUTPUT", f"what {_short(raw[at:end])} prints is only known when it runs")
        return end, (_short(raw[at:end]).replace(" ", "_"),)
    if raw.startswith("${", at):
        end = _after_bracket(raw, at + 1)
        match = _BRACED.fullmatch(raw, at, end)
        if match is None:
            shell.doubt("EXPANSION", f"{_short(raw[at:end])} is only known when it runs")
            return end, (_short(raw[at:end]).replace(" ", "_"),)
        name, default = match[2], match[5]
    else:
        plain = _PLAIN.match(raw, at)
        if plain is None:
            return at + 1, ("$",)
        end, name, default, match = plain.end(), plain[1], None, None
    value = shell.value(name)
    if value is None and default is not None and match is not None and match[4] in "-=":
        # A default may itself hold defaults: each level is shorter than the one around it, and few nest.
        value = tuple(expand(default, shell, quoted=True)) if default.count("${") < 16 else ()
        shell.doubt("DEFAULT", f"the variable {name} is not set in the command; its default is taken")
    if value is None:
        shell.doubt("VARIABLE", f"the variable {name} is not set in the command; give its value")
        return end, () if match is not None and match[3] else (f"${name}",)
    return end, value


_FOLDER = r"""\$\(dirname (-- )?"?(\$0|\$\{0\}|\$BASH_SOURCE|\$\{BASH_SOURCE(\[0\])?\})"?\)"""
_ENTERED = rf"""\$\(cd (-- )?"?{_FOLDER}(?P<above>(/\.\.)*)"?(?P<further>(/\.\.)*)"""
_OWN_FOLDER = re.compile(rf"{_FOLDER}|{_ENTERED}( *&?>/dev/null( 2>&1)?)? *&& *pwd( -P)?\)")
"""How scripts ask for the folder that they lie in."""
_CALCULATION = re.compile(r"\$\(\((.*)\)\)|(?:\$\(|`)\s*expr\s(.*)[)`]", re.DOTALL)
_NAME = re.compile(r"(?<![\w$])[A-Za-z_]\w*")


def _computed(raw: str, shell: Shell) -> int | None:
    """The number of ``$((…))`` and ``$(expr …)`` where all that they name is known."""
    match = _CALCULATION.fullmatch(raw) if len(raw) < _MAX_CALCULATION else None
    if match is None:
        return None
    text = match[2] if match[1] is None else _NAME.sub(r"$\g<0>", match[1])
    is_computable = (
        all(shell.value(name) is not None for name in _PLAIN.findall(text)) and "$(" not in text and "`" not in text
    )
    return whole_number(" ".join(expand(text.replace("\\*", "*"), shell, quoted=True))) if is_computable else None


def _short(text: str) -> str:
    return text if len(text) <= 60 else text[:57] + "…"
