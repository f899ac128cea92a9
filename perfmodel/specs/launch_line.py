"""A deployment from what people paste: launch lines, compose files, MindIE configurations.

`deployment_from` takes text or a path. The forms it reads: `vllm serve`, `python -m vllm.entrypoints...`,
`python -m sglang.launch_server`, `sglang serve`, `docker run`, `bash -c`, `vllm bench`, flags alone, a script or a
page of notes with such a line in it, a compose `command:`, an engine's YAML config and MindIE's config.json.
Whatever is wrong is raised as SpecError, all faults at once.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

from perfmodel.errors import SpecError
from perfmodel.specs.deployment import Deployment
from perfmodel.specs.launch.compose import Service, config_words, services
from perfmodel.specs.launch.line import Launch, engine_of_image, launch_of, take_flags
from perfmodel.specs.launch.mindie import looks_like_json, take_json
from perfmodel.specs.launch.reading import Reading
from perfmodel.specs.launch.render import bench_line, launch_line, unwritten
from perfmodel.specs.launch.words import Word, assignment, plain_lines, statement, statements

__all__ = [
    "bench_line",
    "deployment_from",
    "deployment_from_file",
    "deployment_from_text",
    "launch_line",
    "unwritten",
]

_LONGEST: Final = 500_000
_GAP: Final = r"(?:[ \t]|\\[ \t]*\n)+"
_LAUNCH: Final = re.compile(
    rf"(?<![\w.-])(?:vllm{_GAP}(?:serve|bench)|sglang{_GAP}serve|-m{_GAP}(?:vllm|sglang)\.[\w.]+"
    rf"|(?:docker|podman|nerdctl){_GAP}(?:container{_GAP})?run|bench(?:mark)?_serving\.py|launch_server\.py)(?![\w-])"
)
_SETS: Final = re.compile(r"[ \t]*(export[ \t]+)?[A-Za-z_]\w*=")
_COMMENT_MARK: Final = re.compile(r"^[ \t]*#+[ \t]?", re.MULTILINE)
_PATH: Final = re.compile(r"[^\n\0]{1,1000}\.(?:json|sh|bash|ya?ml|txt|md|log|conf|cfg|toml)", re.IGNORECASE)
_CONTROL: Final = re.compile(r"[\x00-\x08\x0e-\x1a\x1c-\x1f\ufffd]")
_TITLE: Final = "the launch line cannot be used"


def deployment_from(source: str | Path) -> Deployment:
    """Return the deployment that a text, or the file at a path, states. Raises SpecError.

    >>> deployment_from("vllm serve Qwen/Qwen3-8B -tp 2 --max-model-len 32k").max_model_len
    32000
    """
    if isinstance(source, Path):
        return deployment_from_file(source)
    name = source.strip()
    path_like = bool(_PATH.fullmatch(name)) and not re.search(r"\s-", name)
    if len(name) < 1000 and "\n" not in name and "\0" not in name and name:
        try:
            if Path(name).is_file():
                return deployment_from_file(Path(name))
        except (OSError, ValueError):
            pass
    if path_like and len(name.split()) == 1:
        return deployment_from_file(Path(name))
    return deployment_from_text(source)


def deployment_from_file(path: str | Path) -> Deployment:
    """Return the deployment that a file states: MindIE's config.json, or any text with a launch line in it."""
    try:
        content = Path(path).read_bytes() if Path(path).stat().st_size <= 4 * _LONGEST else None
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise SpecError(
            "the file cannot be read", where=str(path)[:200], got=reason[:200], expected="a readable file"
        ) from error
    if content is None:
        raise SpecError("the file is too large", where=str(path), expected=f"{_LONGEST} letters at most")
    try:
        return deployment_from_text(_decoded(content))
    except SpecError as error:
        raise SpecError(f"{Path(path).name}: {error.problem}", faults=error.faults) from error


def deployment_from_text(text: str) -> Deployment:
    """Return the deployment that a pasted text states. Raises SpecError with every fault found."""
    _checked(text)
    reading = Reading()
    text = text.lstrip("\ufeff")
    if looks_like_json(text):
        take_json(text, reading)
        return reading.deployment(_TITLE)
    text = plain_lines(text)
    variables = _variables(text, reading)
    found = _in_yaml(text, variables)
    words = config_words(text) if not found else ()
    if not found and not words:
        found = _in_script(text, variables)
        if not found and text.lstrip()[:1] in ("-", "—", "–"):
            words = tuple(word for words in statements(text, variables) for word in words)
    if not found and not any(word.text.startswith("-") for word in words):
        raise _nothing_found(text)
    if words:
        take_flags(words, reading)
    for launch in found:
        _take(launch, reading)
    return reading.deployment(_TITLE)


def _checked(text: str) -> None:
    fault = ""
    if not text.strip("\ufeff \t\r\n"):
        fault = "an empty text"
    elif len(text) > _LONGEST:
        fault = f"{len(text)} letters"
    elif _CONTROL.search(text):
        fault = "binary data"
    if fault:
        raise SpecError(_TITLE, got=fault, expected="a launch line, a compose file or a MindIE config.json as text")


def _nothing_found(text: str) -> SpecError:
    got = repr(text.strip()[:60])
    is_mindie = "mindie" in text.lower()
    cure = "MindIE is described by its config.json." if is_mindie else "Paste the line that starts the server."
    return SpecError(
        "no launch line found",
        got=got,
        expected="vllm serve ..., python -m sglang.launch_server ..., docker run ..., or flags such as --tp 8",
        cure=cure,
    )


def _decoded(content: bytes) -> str:
    if content[:2] in (b"\xff\xfe", b"\xfe\xff"):
        return content.decode("utf-16", errors="replace")
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError:
        return content.decode("gb18030", errors="replace")


def _variables(text: str, reading: Reading) -> dict[str, str]:
    """Return what lines of the form NAME=value set; exported names go to the environment as well."""
    variables: dict[str, str] = {}
    for line in text.split("\n"):
        if match := _SETS.match(line):
            try:
                commands = statements(line, variables)
            except SpecError:
                continue
            for words in commands:
                pairs = [assignment(word.text) for word in words if word.text != "export"]
                if not all(pairs):
                    break
                variables.update(pair for pair in pairs if pair)
                if match[1]:
                    reading.put_environment(pair for pair in pairs if pair)
    return variables


def _in_yaml(text: str, variables: dict[str, str]) -> list[Launch]:
    found = []
    for service in services(text, variables):
        launches = [launch for words in service.commands if (launch := launch_of(words))]
        if not launches and (launch := _of_image(service)):
            launches = [launch]
        found += [Launch(x.engine, x.role, x.arguments, service.environment + x.environment) for x in launches]
    return found


def _of_image(service: Service) -> Launch | None:
    """Return the start of a service whose command is nothing but flags for its image."""
    words = service.commands[0]
    engine = engine_of_image(service.image)
    if not words or (engine is None and not any(w.text.split("=")[0] in ("--model", "--model-path") for w in words)):
        return None
    return Launch(engine, "server", words[1:] if words[0].text == "serve" else words)


def _in_script(text: str, variables: dict[str, str]) -> list[Launch]:
    """Return every start in a shell text; those in comments count only if there is none outside."""
    live = _starts(text, variables)
    if live or not _LAUNCH.search(text):
        return live
    return _starts(_COMMENT_MARK.sub("", text), variables)


def _starts(text: str, variables: dict[str, str]) -> list[Launch]:
    found: list[Launch] = []
    done = 0
    for match in _LAUNCH.finditer(text):
        if match.start() < done:
            continue
        begin = _line_start(text, match.start(), done)
        if text[begin : match.start()].lstrip().startswith("#"):
            continue
        words, done = _command(text, begin, match, variables)
        launch = launch_of(words)
        found += [launch] if launch else []
    return found


def _line_start(text: str, pos: int, least: int) -> int:
    """Return where the command around `pos` begins: its line, and the continued lines before it."""
    begin = text.rfind("\n", 0, pos) + 1
    while begin > least and re.search(r"\\[ \t]*\Z", text[max(0, begin - 40) : begin - 1]):
        begin = text.rfind("\n", 0, begin - 1) + 1
    return max(begin, least)


def _command(text: str, begin: int, match: re.Match[str], variables: dict[str, str]) -> tuple[tuple[Word, ...], int]:
    """Return the words of the command that holds the match; in notes, code between backticks ends with them."""
    end = text.find("`", match.end())
    if text[match.start() - 1 : match.start()] == "`" and end > 0:
        return statement(text[:end], match.start(), variables)[0], end + 1
    try:
        words, pos = statement(text, begin, variables)
        while pos <= match.start():
            words, pos = statement(text, pos, variables)
    except SpecError:
        words, pos = statement(text, match.start(), variables)
    return words, pos


def _take(launch: Launch, reading: Reading) -> None:
    if launch.engine is not None:
        reading.put("engine", launch.engine, f"line {launch.arguments[0].line}" if launch.arguments else "engine")
    reading.put_environment(launch.environment)
    own = reading
    if launch.role == "client":
        own = Reading()
    take_flags(launch.arguments, own)
    if own is reading:
        return
    for name in ("model", "served_model_name"):
        if name in own.values:
            reading.fallback.setdefault(name, own.values.pop(name))
    for name, value in own.values.items():
        reading.put(name, value, own.places[name])
    reading.faults += own.faults
    reading.notes += own.notes
    reading.ignored += own.ignored
    reading.unknown += own.unknown
