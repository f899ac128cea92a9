"""Shell text as words: quotes, continuations, comments, variables, redirections, and the quirks of pasted text."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from perfmodel.errors import SpecError

__all__ = ["Word", "assignment", "expanded", "plain_lines", "statement", "statements"]

_CONTINUATION: Final = re.compile(r"[\\^`][ \t\r]*(?:[ \t]#[^\n]*)?(?:\n|\Z)")
_NEXT_IS_FLAG: Final = re.compile(r"(?:[ \t\r]*(?:#[^\n]*)?\n)*[ \t]*(?=(?:--?|[—–])[A-Za-z])")
_VARIABLE: Final = re.compile(r"\$(?:\{([A-Za-z_]\w*)(?::?[-=]([^{}]*))?\}|([A-Za-z_]\w*)|\{[^{}\n]*\}|[@*#?0-9])")
_PLACEHOLDER: Final = re.compile(r"<[A-Za-z][^<>\n]{0,60}>")
_REDIRECTION: Final = re.compile(r"&?>>?&?|<<?<?-?&?")
_ASSIGNMENT: Final = re.compile(r"([A-Za-z_]\w*)=(.*)", re.DOTALL)
_PROMPT: Final = re.compile(
    r"^[ \t]*(?:\([\w.-]+\)[ \t]*)?(?:\[?[\w.-]+@[\w.-]+[^\n$#]{0,80}[$#]|\$|❯|➜|%)[ \t]+|^[ \t]*!(?=[A-Za-z])"
    r"|^[ \t]*>[ \t]+(?=-)",
    re.MULTILINE,
)
_FENCE: Final = re.compile(r"^[ \t]*(?:```|~~~)[^\n]*$", re.MULTILINE)
_BLANKS: Final = " \t\r\f\v\u00a0\u3000"
_INVISIBLE: Final = "\u200b\u200c\u200d\u2060\ufeff"
_CLOSING: Final = {'"': '"', "“": "”", "”": "”"}


@dataclass(frozen=True, slots=True)
class Word:
    """One word of a command, its line in the text, and the variables in it that the text does not set."""

    text: str
    line: int = 1
    unset: tuple[str, ...] = ()


def assignment(word: str) -> tuple[str, str] | None:
    """Return (name, value) of a word NAME=value, or None."""
    match = _ASSIGNMENT.fullmatch(word)
    return (match[1], match[2]) if match else None


def plain_lines(text: str) -> str:
    """Return the text without prompts and Markdown fences, line for line.

    >>> plain_lines("$ vllm serve m")
    'vllm serve m'
    """
    return _PROMPT.sub("", _FENCE.sub("", text.replace("\r\n", "\n").replace("\r", "\n")))


def expanded(text: str, variables: Mapping[str, str]) -> tuple[str, tuple[str, ...]]:
    """Return the text with its variables put in, and the names that are not set anywhere.

    >>> expanded("${TP:-2} $MODEL", {})
    ('2 $MODEL', ('$MODEL',))
    """
    unset: list[str] = []

    def value(match: re.Match[str]) -> str:
        name = match[1] or match[3]
        known = variables.get(name) if name else None
        if known is None and match[2] is None:
            unset.append(match[0])
            return match[0]
        return known if known is not None else (match[2] or "")

    return _VARIABLE.sub(value, text), tuple(unset)


@dataclass(slots=True)
class _Reader:
    text: str
    variables: dict[str, str]
    pos: int = 0
    line: int = 1
    words: list[Word] = field(default_factory=list)
    letters: list[str] | None = None
    unset: list[str] = field(default_factory=list)
    skip_word: bool = False
    """The next word is the target of a redirection."""

    def add(self, letters: str) -> None:
        if self.letters is None:
            self.letters = []
        self.letters.append(letters)

    def end_word(self) -> None:
        if self.letters is None:
            return
        if not self.skip_word:
            self.words.append(Word("".join(self.letters), self.line, tuple(self.unset)))
        self.letters, self.unset, self.skip_word = None, [], False

    def unbalanced(self, quote: str, line: int) -> SpecError:
        return SpecError(
            "the launch line cannot be read",
            where=f"line {line}",
            got=f"an opening {quote} without its closing one",
            expected="balanced quotes",
            cure="Paste the whole line, or add the quote that is missing.",
        )

    def quoted(self) -> None:
        """Take a quoted part in; single quotes keep everything, double ones let variables and escapes through."""
        opening, start = self.text[self.pos], self.line
        closing = _CLOSING.get(opening, "'")
        self.pos += 1
        part: list[str] = []
        self.add("")
        while self.pos < len(self.text):
            c = self.text[self.pos]
            if c == closing or (closing == "”" and c == '"'):
                self.pos += 1
                self.add("".join(part))
                return
            if closing != "'" and c == "\\" and self.text[self.pos + 1 : self.pos + 2] in ('"', "\\", "$", "`", "\n"):
                follower = self.text[self.pos + 1]
                self.line += follower == "\n"
                part.append("" if follower == "\n" else follower)
                self.pos += 2
            elif closing != "'" and c == "$":
                self.add("".join(part))
                part.clear()
                self.variable()
            else:
                self.line += c == "\n"
                part.append(c)
                self.pos += 1
        raise self.unbalanced(opening, start)

    def variable(self) -> None:
        if self.text.startswith("$(", self.pos):
            return self.substitution("(", ")")
        match = _VARIABLE.match(self.text, self.pos)
        if match is None:
            self.add("$")
            self.pos += 1
            return None
        value, unset = expanded(match[0], self.variables)
        self.add(value)
        self.unset += unset
        self.pos = match.end()
        return None

    def substitution(self, opening: str, closing: str) -> None:
        """Take in $(command) or `command`: its value is not known here."""
        start, depth = self.pos, 0
        for i in range(start + 1, len(self.text)):
            c = self.text[i]
            depth += (c == opening and opening != closing) - (c == closing)
            if c == closing and depth <= 0:
                piece = self.text[start : i + 1]
                self.line += piece.count("\n")
                self.add(piece)
                self.unset.append(piece)
                self.pos = i + 1
                return
        raise self.unbalanced(self.text[start : start + 1 + (opening == "(")], self.line)

    def redirection(self, match: re.Match[str]) -> None:
        if self.letters is not None and "".join(self.letters).isdigit():
            self.letters, self.unset = None, []
        self.end_word()
        self.pos = match.end()
        self.skip_word = True

    def statement(self) -> list[Word] | None:
        """Return the words up to the end of the next command, or None at the end of the text."""
        self.words = []
        while self.pos < len(self.text):
            if self.step():
                break
        self.end_word()
        self.skip_word = False
        return self.words if self.words or self.pos < len(self.text) else None

    def step(self) -> bool:
        """Take one piece in; True where the command ends."""
        text, pos = self.text, self.pos
        c = text[pos]
        if c in "\\^`" and (match := _CONTINUATION.match(text, pos)):
            self.end_word()
            self.pos = match.end()
            self.line += 1
        elif c == "\n":
            self.end_word()
            self.pos += 1
            self.line += 1
            match = _NEXT_IS_FLAG.match(text, self.pos)
            return bool(self.words) and match is None
        elif c in _BLANKS:
            self.end_word()
            self.pos += 1
        elif c in _INVISIBLE:
            self.pos += 1
        elif c == "#" and self.letters is None:
            end = text.find("\n", pos)
            self.pos = end if end >= 0 else len(text)
        elif c in "'\"“”":
            self.quoted()
        elif c == "$":
            self.variable()
        elif c == "`":
            self.substitution("`", "`")
        elif c == "<" and (match := _PLACEHOLDER.match(text, pos)):
            self.add(match[0])
            self.unset.append(match[0])
            self.pos = match.end()
        elif match := _REDIRECTION.match(text, pos):
            self.redirection(match)
        elif c in ";|&()":
            self.end_word()
            self.pos += 1
            return bool(self.words)
        elif c in "—–" and self.letters is None:
            self.add("--")
            self.pos += 2 if text[pos + 1 : pos + 2] in ("—", "–", "-") else 1
        elif c == "\\" and pos + 1 < len(text):
            self.add(text[pos + 1])
            self.pos += 2
        else:
            self.add(c)
            self.pos += 1
        return False


def statement(text: str, start: int, variables: Mapping[str, str]) -> tuple[tuple[Word, ...], int]:
    """Return the words of the command that begins at `start`, and where it ends. Raises SpecError on open quotes."""
    reader = _Reader(text, dict(variables), start, text.count("\n", 0, start) + 1)
    words: list[Word] | None = []
    while words is not None and not words:
        words = reader.statement()
    return tuple(words or ()), reader.pos


def statements(text: str, variables: Mapping[str, str]) -> list[tuple[Word, ...]]:
    """Return every command of the text as words; assignments on their own set variables for what follows.

    >>> [[w.text for w in words] for words in statements("TP=2; run --tp $TP \\\\\\n --x 'a b' # end", {})]
    [['TP=2'], ['run', '--tp', '2', '--x', 'a b']]
    """
    reader = _Reader(text, dict(variables))
    found: list[tuple[Word, ...]] = []
    while (words := reader.statement()) is not None:
        pairs = [assignment(word.text) for word in words if word.text != "export"]
        if words and all(pairs):
            reader.variables.update(pair for pair in pairs if pair)
        found += [tuple(words)] if words else []
    return found
