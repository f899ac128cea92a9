"""One command as a deployment: which program it starts, and what each of its flags states."""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal

from perfmodel.errors import Fault
from perfmodel.specs.deployment import Engine
from perfmodel.specs.launch.flags import IGNORED, IGNORED_SWITCHES, SHORT, SPECIAL, Flag, by_name
from perfmodel.specs.launch.reading import Reading
from perfmodel.specs.launch.values import TRUTH
from perfmodel.specs.launch.words import Word, assignment, statements

__all__ = ["Launch", "engine_of_image", "launch_of", "take_flags"]

_FLAG: Final = re.compile(r"(--?[A-Za-z][^=\s]*)(?:=(.*))?", re.DOTALL)
_GLUED: Final = re.compile(r"-(tp|pp|dp|dcp|O|n|r)\.?([0-9]+)")
_SHELLS: Final = ("bash", "sh", "zsh", "ash", "dash")
_CONTAINERS: Final = ("docker", "podman", "nerdctl")
_NO_VALUE: Final = (
    "--rm --privileged --init --detach --interactive --tty --read-only --publish-all --no-healthcheck --quiet "
    "--oom-kill-disable --sig-proxy --disable-content-trust --use-api-socket"
)
_DOCKER_SWITCHES: Final = frozenset(_NO_VALUE.split())
_CLIENT_SCRIPTS: Final = ("benchmark_serving.py", "bench_serving.py")
_CLIENT_MODULES: Final = ("sglang.bench_serving", "vllm.benchmarks.serve", "vllm.benchmarks.benchmark_serving")
_LEAST_PREFIX: Final = 6
_DEEPEST: Final = 4


@dataclass(frozen=True, slots=True)
class Launch:
    """A program start found in a command: its engine, whether it serves or loads, its arguments and environment."""

    engine: Engine | None
    role: Literal["server", "client"]
    arguments: tuple[Word, ...]
    environment: tuple[tuple[str, str], ...] = ()


def engine_of_image(image: str) -> Engine | None:
    """Return the engine that a container image is named after, or None.

    >>> engine_of_image("quay.io/ascend/vllm-ascend:v0.9.1")
    'vllm'
    """
    name = image.lower()
    return "vllm" if "vllm" in name else "sglang" if "sglang" in name else None


def launch_of(words: Sequence[Word], depth: int = 0) -> Launch | None:
    """Return the server or load generator that a command starts, or None if it starts something else.

    `depth` counts the shells and containers around the command; beyond a few the search ends.
    """
    if depth > _DEEPEST:
        return None
    for i, word in enumerate(words[:-1]):
        program = word.text.rsplit("/", 1)[-1]
        after = [w.text for w in words[i + 1 : i + 3]]
        found: Launch | None = None
        if program in _CONTAINERS and "run" in after:
            found = _in_container(words[i + 2 + after.index("run") :], depth)
        elif program in _SHELLS and (script := _script(words[i + 1 : i + 8])):
            inner = (launch_of(command, depth + 1) for command in statements(script.text, {}))
            found = next((launch for launch in inner if launch), None)
        elif start := _start(program, *after):
            found = Launch(start[0], start[1], tuple(words[i + start[2] :]))
        else:
            continue
        own = tuple(pair for w in words[:i] if (pair := assignment(w.text)))
        return Launch(found.engine, found.role, found.arguments, own + found.environment) if found else None
    return None


def _start(program: str, subject: str, verb: str = "") -> tuple[Engine | None, Literal["server", "client"], int] | None:
    """Return (engine, role, words before the arguments) of a program and the two words after it."""
    if program == "vllm" and subject == "serve":
        return "vllm", "server", 2
    if program == "vllm" and subject == "bench" and verb:
        return (None, "client", 3) if verb == "serve" else ("vllm", "server", 3)
    if program == "sglang" and subject == "serve":
        return "sglang", "server", 2
    if program == "-m" and subject in _CLIENT_MODULES:
        return None, "client", 2
    if program in _CLIENT_SCRIPTS:
        return None, "client", 1
    if program == "-m" and subject.startswith("vllm.entrypoints"):
        return "vllm", "server", 3 if verb == "serve" else 2
    if program == "-m" and subject.startswith(("sglang.launch_server", "sglang.bench_", "sglang.srt")):
        return "sglang", "server", 2
    return ("sglang", "server", 1) if program == "launch_server.py" else None


def _script(words: Sequence[Word]) -> Word | None:
    """Return the script of `bash -c "..."`, given the words after `bash`."""
    pairs = itertools.pairwise(words)
    return next((script for flag, script in pairs if re.fullmatch(r"-[a-z]*c", flag.text)), None)


def _in_container(rest: Sequence[Word], depth: int) -> Launch | None:
    """Return what `docker run` starts: its own flags end at the image."""
    environment: list[tuple[str, str]] = []
    entrypoint: list[Word] = []
    i = 0
    while i < len(rest) and rest[i].text.startswith("-"):
        name, inline, value = rest[i].text.partition("=")
        takes_next = not inline and name not in _DOCKER_SWITCHES and not re.fullmatch(r"-[ditP]+", name)
        if takes_next:
            value = rest[i + 1].text if i + 1 < len(rest) else ""
        if name in ("-e", "--env") and (pair := assignment(value)):
            environment.append(pair)
        elif name == "--entrypoint" and value:
            entrypoint = [Word(value, rest[i].line)]
        i += 2 if takes_next else 1
    if i >= len(rest):
        return None
    inside = (*entrypoint, *rest[i + 1 :])
    found = launch_of(inside, depth + 1)
    if found is None:
        engine = engine_of_image(rest[i].text)
        named = any(w.text.split("=")[0] in ("--model", "--model-path", "--model_path") for w in inside)
        if not named and (engine is None or not inside):
            return None
        found = Launch(engine, "server", inside[1:] if inside[0].text == "serve" else inside)
    return Launch(found.engine, found.role, found.arguments, (*environment, *found.environment))


def take_flags(words: Sequence[Word], reading: Reading) -> None:
    """State in `reading` what the arguments of a program say; the first loose word is the model."""
    i, in_list = 0, False
    while i < len(words):
        word = words[i]
        i += 1
        if not _FLAG.fullmatch(word.text):
            _loose(word, reading, in_list)
            continue
        follower = words[i] if i < len(words) and not _FLAG.fullmatch(words[i].text) else None
        taken, in_list = _Argument(word, follower, reading).take()
        i += taken


def _loose(word: Word, reading: Reading, in_list: bool) -> None:
    if word.text in ("\\", "--") or not word.text.strip():
        return
    if word.unset and (in_list or "model" in reading.values or "@" in word.text):
        reading.notes.append(f"{word.text} is not set in the text and was skipped")
    elif "model" not in reading.values and not (in_list and ("=" in word.text or word.text[0].isdigit())):
        if word.unset:
            reading.notes.append(f"the model is {word.text}, which the text does not set")
        else:
            reading.put_text("model", "text", word.text, f"model (line {word.line})")
    elif not in_list:
        reading.unknown.append(word.text)


@dataclass(slots=True)
class _Argument:
    """One flag with the word after it, if that is no flag."""

    word: Word
    follower: Word | None
    reading: Reading
    name: str = ""
    value: Word | None = None
    taken: int = 0
    inner: str = ""
    """What follows the dot of --flag.inner: a key of a JSON value."""

    def take(self) -> tuple[int, bool]:
        """Return how many following words belong to the flag, and whether further ones may."""
        match = _FLAG.fullmatch(self.word.text)
        if match is None:
            return 0, False
        name, _, self.inner = match[1].partition(".") if not match[1].startswith("-O") else (match[1], "", "")
        inline = match[2]
        if glued := _GLUED.fullmatch(match[1]):
            name, inline = f"-{glued[1]}", glued[2]
        elif name.startswith("-O") and len(name) > 2:
            name, inline = "-O", name[2:]
        self.name = name.replace("_", "-") if name.startswith("--") else name
        if inline is not None:
            self.value = Word(inline, self.word.line, self.word.unset)
        return self.known()

    @property
    def where(self) -> str:
        return f"{self.name} (line {self.word.line})"

    def next_value(self) -> Word | None:
        """Take the value of the flag: after its equals sign, or the next word."""
        if self.value is None and self.follower is not None:
            self.value, self.taken = self.follower, 1
        return self.value

    def truth(self) -> str:
        """Take the value of a switch: nothing, true or false."""
        if self.value is None and self.follower is not None and self.follower.text.lower() in ("true", "false"):
            self.next_value()
        return self.value.text if self.value is not None else "true"

    def known(self) -> tuple[int, bool]:
        flag = by_name().get(self.name)
        opposite = f"--{self.name.removeprefix('--no-')}"
        if flag is None and self.name not in SPECIAL and (near := self.unabbreviated()):
            flag = near
        if flag is not None and not self.inner:
            self.field(flag)
            return self.taken, flag.field == "served_model_name"
        if self.name in SPECIAL:
            self.special(SPECIAL[self.name])
            return self.taken, True
        if self.name in IGNORED_SWITCHES or opposite in IGNORED_SWITCHES:
            self.truth()
            self.reading.ignored.append(self.name)
            return self.taken, False
        known = self.name in IGNORED or self.name in SHORT or opposite in IGNORED
        self.next_value()
        (self.reading.ignored if known else self.reading.unknown).append(self.name)
        return self.taken, True

    def unabbreviated(self) -> Flag | None:
        """Return the one flag that begins like this, as argparse does."""
        if not self.name.startswith("--") or len(self.name) < _LEAST_PREFIX + 2:
            return None
        if self.name in IGNORED or self.name in IGNORED_SWITCHES:
            return None
        everything = {*by_name(), *SPECIAL, *IGNORED, *IGNORED_SWITCHES}
        near = sorted(name for name in everything if name.startswith(self.name))
        fields = {by_name().get(name) for name in near}
        flag = next(iter(fields)) if len(fields) == 1 else None
        if flag is not None:
            self.reading.notes.append(f"{self.name} was read as {near[0]}")
        return flag

    def field(self, flag: Flag) -> None:
        if flag.kind in ("on", "off"):
            truth = self.truth().lower()
            if truth not in TRUTH:
                self.reading.faults.append(Fault(self.where, repr(truth), "no value, true or false"))
            else:
                self.reading.put(flag.field, TRUTH[truth] == (flag.kind == "on"), self.where)
            return
        value = self.next_value()
        if value is None or (not value.text.strip() and flag.kind not in ("text", "lower")):
            self.reading.faults.append(Fault(self.where, "nothing", "a value after it"))
        elif value.unset:
            self.not_set(flag, value)
        elif self.name == "--chunked-prefill-size" and value.text.strip() in ("-1", "0"):
            self.reading.put("chunked_prefill", False, self.where)
        elif flag.field == "max_model_len" and value.text.strip() in ("-1", "auto"):
            self.reading.notes.append(f"{self.name} {value.text}: the engine takes the longest context that fits")
        elif flag.field == "speculative_method" and value.text.upper() == "NEXTN":
            self.reading.put(flag.field, "mtp", self.where)
        else:
            self.reading.put_text(flag.field, flag.kind, value.text, self.where)

    def not_set(self, flag: Flag, value: Word) -> None:
        if flag.kind in ("text", "lower"):
            self.reading.notes.append(f"{self.name} is {value.text}, which the text does not set")
        else:
            cure = "Put the number in its place, or paste the line that sets it as well."
            self.reading.faults.append(Fault(self.where, value.text, "a number", cure))

    def special(self, reader: str) -> None:
        value = self.next_value()
        if reader == "config_file":
            self.reading.unknown.append(self.name)
            name = value.text if value else "the file"
            self.reading.notes.append(f"--config: {name} is not read from here; give that file itself")
        elif value is None:
            self.reading.faults.append(Fault(self.where, "nothing", "a value after it"))
        elif reader == "speculative":
            self.speculative(value.text)
        elif reader == "compilation":
            self.compilation(value.text)
        elif reader == "draft_tokens":
            self.draft_tokens(value)
        elif reader == "tree_width":
            self.reading.ignored.append(self.name)
            if value.text.strip() != "1":
                self.reading.notes.append(f"{self.name} {value.text}: a tree of drafts is read as one chain")
        elif reader == "a2a_backend":
            self.reading.ignored.append(self.name)
            if value.text.lower() in ("deepep", "mooncake", "ascend_fuseep"):
                self.reading.put("enable_expert_parallel", True, self.where)
        else:
            self.reading.ignored.append(self.name)

    def draft_tokens(self, value: Word) -> None:
        """SGLang counts the root: n draft tokens are n - 1 proposed ones; --speculative-num-steps goes first."""
        text = value.text.strip()
        self.reading.ignored.append(self.name)
        if value.unset or not re.fullmatch(r"[0-9]{1,6}", text) or int(text) < 1:
            self.reading.faults.append(Fault(self.where, repr(text)[:80], "a whole number, at least 1"))
        elif int(text) > 1:
            self.reading.fallback["speculative_tokens"] = int(text) - 1

    def object_of(self, text: str) -> dict[str, object]:
        """Return a JSON value as a mapping; a dotted flag is a mapping of one key."""
        if self.inner:
            return {self.inner.replace("-", "_"): text}
        try:
            found = json.loads(text)
        except (ValueError, RecursionError):
            found = None
        if not isinstance(found, dict):
            cure = "Put the JSON in single quotes, as a shell needs it."
            self.reading.faults.append(Fault(self.where, repr(text)[:80], "a JSON object", cure))
            return {}
        return found

    def speculative(self, text: str) -> None:
        found = self.object_of(text)
        n_tokens, method = found.get("num_speculative_tokens"), found.get("method")
        if n_tokens is not None:
            self.reading.put_text("speculative_tokens", "count", str(n_tokens), self.where)
        elif found and not self.inner:
            self.reading.notes.append(f"{self.name} does not state num_speculative_tokens")
        if method is not None:
            self.reading.put_text("speculative_method", "lower", str(method), self.where)
        elif found.get("model") is not None:
            self.reading.fallback.setdefault("speculative_method", "draft_model")

    def compilation(self, text: str) -> None:
        """Only two things matter here: no graphs at all, and the largest captured batch."""
        self.reading.ignored.append(self.name)
        if re.fullmatch(r"[0-9]", text):
            return
        if self.word.text.startswith("-O."):
            self.inner, _, text = self.word.text[3:].partition("=")
        found = self.object_of(text)
        mode, largest = found.get("cudagraph_mode"), found.get("max_cudagraph_capture_size")
        if str(mode).upper() == "NONE" and mode is not None:
            self.reading.put("enforce_eager", True, self.where)
        if largest is not None:
            self.reading.put_text("graph_max_batch", "count", str(largest), self.where)
