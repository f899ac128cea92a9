"""Launch lines inside YAML: `command` of a compose file or a pod, a bare list of words, an engine's config file.

No YAML reader is used: what is understood here is the small part in which commands are written, and it has to survive
being pasted as a fragment with any indentation.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from perfmodel.specs.launch.flags import by_name
from perfmodel.specs.launch.words import Word, expanded, statements

__all__ = ["Service", "config_words", "services"]

_KEY: Final = re.compile(r"(\s*(?:-\s+)?)(entrypoint|command|args)\s*:(?:\s+(.*)|\s*)")
_ITEM: Final = re.compile(r"(\s*)-\s+(.*\S)\s*")
_IMAGE: Final = re.compile(r"\s*(?:-\s+)?image\s*:\s*[\"']?([^\s\"'#]+)")
_ENVIRONMENT: Final = re.compile(r"(\s*)environment\s*:\s*(?:#.*)?")
_PAIR: Final = re.compile(r"\s*(?:-\s+)?[\"']?([A-Za-z_]\w*)[\"']?\s*[=:]\s*(.*?)\s*")
_FLOW: Final = re.compile(r"\"(?:[^\"\\]|\\.)*\"|'(?:[^']|'')*'|[^,\[\]\s][^,\[\]\n]*")
_FLAG_AND_VALUE: Final = re.compile(r"(--?[A-Za-z][\w.-]*)\s+(.+)", re.DOTALL)
_SETTING: Final = re.compile(r"([A-Za-z][\w-]*)\s*:\s*(.*)")
_ORDER: Final = ("entrypoint", "command", "args")


@dataclass(frozen=True, slots=True)
class Service:
    """One service of a compose file: the commands it may run (one per statement), its image and environment."""

    commands: tuple[tuple[Word, ...], ...]
    image: str = ""
    environment: tuple[tuple[str, str], ...] = ()


def services(text: str, variables: Mapping[str, str]) -> tuple[Service, ...]:
    """Return the services of a text that has `command:` or `args:` keys or is a bare YAML list; else nothing."""
    lines = text.expandtabs(4).split("\n")
    keys = [(i, match) for i, line in enumerate(lines) if (match := _KEY.fullmatch(line))]
    if not keys:
        filled = [line for line in lines if line.strip() and not line.lstrip().startswith("#")]
        is_list = bool(filled) and all(_ITEM.fullmatch(line) for line in filled)
        flags = is_list and any(re.match(r"\s*-\s+[\"']?--", line) for line in filled)
        return (Service((tuple(_items(lines, 0, 0, variables)),)),) if flags else ()
    owners: dict[int, list[tuple[int, re.Match[str]]]] = {}
    for i, match in keys:
        owners.setdefault(_owner(lines, i, len(match[1])), []).append((i, match))
    return tuple(_service(lines, owner, found, variables) for owner, found in owners.items())


def config_words(text: str) -> tuple[Word, ...]:
    """Return an engine's own YAML config file (key: value, no nesting) as flags; empty if the text is none.

    >>> [w.text for w in config_words("model: Qwen/Qwen3-8B\\ntensor-parallel-size: 2 # cards")]
    ['--model', 'Qwen/Qwen3-8B', '--tensor-parallel-size', '2']
    """
    words: list[Word] = []
    known = False
    for number, line in enumerate(text.split("\n"), start=1):
        if not line.strip() or line.lstrip().startswith("#") or line.strip() == "---":
            continue
        match = _SETTING.fullmatch(line.rstrip())
        if match is None:
            return ()
        name, value = f"--{match[1].replace('_', '-')}", _scalar(match[2])
        known = known or name in by_name()
        words += [Word(name, number), Word(value, number)] if value else []
    return tuple(words) if known else ()


def _owner(lines: list[str], i: int, indent: int) -> int:
    """Return the line that the key at `indent` hangs from, or -1."""
    for j in range(i, -1, -1):
        if lines[j].strip() and not lines[j].lstrip().startswith("#") and _indent(lines[j]) < indent:
            return j
    return -1


def _indent(line: str) -> int:
    return len(line) - len(line.lstrip(" "))


def _service(
    lines: list[str], owner: int, keys: list[tuple[int, re.Match[str]]], variables: Mapping[str, str]
) -> Service:
    stop = len(lines)
    if owner >= 0:
        base = _indent(lines[owner])
        later = (j for j in range(owner + 1, stop) if lines[j].strip() and _indent(lines[j]) <= base)
        stop = next(later, stop)
    block = lines[max(owner, 0) : stop]
    image = next((match[1] for line in block if (match := _IMAGE.match(line))), "")
    parts = sorted(keys, key=lambda key: _ORDER.index(key[1][2]))
    found = [_value(lines, i, match, variables) for i, match in parts]
    words = [word for commands in found for word in (commands[0] if commands else ())]
    several = tuple(command for commands in found for command in commands[1:])
    return Service((tuple(words), *several), image, tuple(_environment(block)))


def _environment(block: list[str]) -> list[tuple[str, str]]:
    pairs: list[tuple[str, str]] = []
    for i, line in enumerate(block):
        if head := _ENVIRONMENT.fullmatch(line):
            for below in block[i + 1 :]:
                deeper = _indent(below) > len(head[1]) or below.lstrip().startswith("- ")
                pair = _PAIR.fullmatch(_unwrapped(below))
                if not deeper or (pair is None and below.strip()):
                    break
                pairs += [(pair[1], _scalar(pair[2]))] if pair else []
    return pairs


def _unwrapped(line: str) -> str:
    """Return a list item `- "A=b"` without its quotes."""
    match = _ITEM.fullmatch(line)
    return f"- {_scalar(match[2])}" if match else line


def _value(lines: list[str], i: int, match: re.Match[str], variables: Mapping[str, str]) -> list[tuple[Word, ...]]:
    """Return the commands that the key of line `i` gives, whatever of YAML's forms it is written in."""
    rest = (match[3] or "").strip()
    indent = len(match[1])
    if rest.startswith("#"):
        rest = ""
    if rest.startswith("["):
        return [tuple(_flow(lines, i, rest, variables))]
    below = _deeper(lines, i, indent)
    if (
        not rest
        and (first := next((line for line in lines[i + 1 :] if line.strip(" ")), ""))
        and _ITEM.fullmatch(first)
    ):
        return [tuple(_items(lines, i + 1, indent, variables))]
    if rest[:1] in (">", "|"):
        pieces, glue = below, "\n" if rest[0] == "|" else " \\\n"
    else:
        pieces, glue = [rest, *below], " \\\n"
    text = glue.join(pieces).strip()
    if len(text) > 1 and text[0] in "\"'" and text[-1] == text[0] and text[0] not in text[1:-1]:
        text = text[1:-1]
    return [
        tuple(Word(word.text, word.line + i, word.unset) for word in words) for words in statements(text, variables)
    ]


def _deeper(lines: list[str], i: int, indent: int) -> list[str]:
    found = []
    for line in lines[i + 1 :]:
        if line.strip() and _indent(line) <= indent:
            break
        found.append(line.strip())
    return found


def _flow(lines: list[str], i: int, rest: str, variables: Mapping[str, str]) -> list[Word]:
    text = "\n".join([rest, *lines[i + 1 :]])
    body, inside = [], ""
    for c in text[1:]:
        inside = "" if c == inside else c if not inside and c in "\"'" else inside
        if c == "]" and not inside:
            break
        body.append(c)
    return [word for item in _FLOW.findall("".join(body)) for word in _split(item.strip(), i + 1, variables)]


def _items(lines: list[str], start: int, indent: int, variables: Mapping[str, str]) -> list[Word]:
    words: list[Word] = []
    for number in range(start, len(lines)):
        line = lines[number]
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        match = _ITEM.fullmatch(line)
        if match is None or len(match[1]) < indent:
            break
        if match[2] in ("|", "|-", ">", ">-"):
            script = "\n".join(_deeper(lines, number, len(match[1])))
            words.append(Word(script, number + 1))
            break
        words += _split(match[2], number + 1, variables)
    return words


def _split(item: str, line: int, variables: Mapping[str, str]) -> list[Word]:
    """Return the words of one list item: `--flag value` in one item is two."""
    text, unset = expanded(_scalar(item), variables)
    match = _FLAG_AND_VALUE.fullmatch(text)
    parts = [match[1], _scalar(match[2])] if match else [text]
    return [Word(part, line, tuple(name for name in unset if name in part)) for part in parts]


def _scalar(text: str) -> str:
    """Return a YAML scalar without quotes and comment."""
    text = text.strip()
    if text[:1] == '"':
        end = re.match(r"\"(?:[^\"\\]|\\.)*\"", text)
        try:
            return str(json.loads(end[0])) if end else text
        except ValueError:
            return end[0][1:-1] if end else text
    if text[:1] == "'" and (end := re.match(r"'(?:[^']|'')*'", text)):
        return end[0][1:-1].replace("''", "'")
    return re.sub(r"(?:^|\s)#.*", "", text).strip()
