"""The child program that renders an untrusted chat template; `template_process.py` starts and watches it.

It imports nothing of bitnet. One JSON line is one request, {"source": template} to parse it or with "variables" to
render it; one JSON line is the answer: {"text": ...}, {"refused": ...} (raise_exception) or {"failed": ...}.
"""

from __future__ import annotations

import json
import signal
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from datetime import datetime
from functools import lru_cache, wraps
from typing import Any, Final, NoReturn

import jinja2
import jinja2.filters
import jinja2.nodes
import jinja2.parser
from jinja2.ext import Extension
from jinja2.sandbox import ImmutableSandboxedEnvironment

_MESSAGE: Final = 300  # characters of the template's message in an error
_NUMBER: Final = 1 << 62
_METHODS: Final = {
    *("strip", "lstrip", "rstrip", "split", "rsplit", "splitlines", "partition", "rpartition", "startswith"),
    *("endswith", "removeprefix", "removesuffix", "replace", "find", "rfind", "index", "count", "join"),
    *("lower", "upper", "capitalize", "title", "isdigit", "isalpha", "isspace", "isupper", "islower"),
    *("items", "keys", "values", "get"),
    *("grouper", "list"),  # attributes of the groups that the filter groupby yields
}
_FILTERS: Final = {
    *("abs", "batch", "capitalize", "count", "d", "default", "dictsort", "e", "escape", "filesizeformat"),
    *("first", "float", "forceescape", "groupby", "int", "items", "join", "last", "length", "list", "lower", "map"),
    *("max", "min", "reject", "rejectattr", "replace", "reverse", "round", "safe", "select", "selectattr", "slice"),
    *("sort", "string", "striptags", "sum", "title", "trim", "truncate", "unique", "upper", "urlencode", "wordcount"),
}
"""Filters of jinja2 whose result is not much longer than their input; `indent` and `batch` are bounded below."""
_WIDEST: Final = 64  # blanks of an indentation
_LARGEST: Final = 1 << 12  # parts of a slice, or items of a batch
_GLOBALS: Final = ("range", "dict", "namespace")


class ChatEnvironment(ImmutableSandboxedEnvironment):
    """The jinja2 environment that transformers sets up for chat templates (trimmed blocks, loop controls,
    raise_exception, tojson, strftime_now), restricted to the filters, functions and methods that chat templates use."""

    intercepted_binops = frozenset({"*", "**", "%"})

    def __init__(self) -> None:
        super().__init__(trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols", _Generation])
        known = self.filters
        self.filters = {name: func for name, func in known.items() if name in _FILTERS}
        self.filters["indent"] = _indent
        for name in ("batch", "slice"):
            self.filters[name] = _bounded(known[name])
        self.filters["tojson"] = _to_json
        self.globals = {name: self.globals[name] for name in _GLOBALS}
        self.globals["raise_exception"] = _raise_exception
        self.globals["strftime_now"] = lambda form: datetime.now().strftime(form)  # local time, as in transformers

    def is_safe_attribute(self, obj: Any, attr: str, value: Any) -> bool:
        """Also reject methods of text, numbers and containers that are not listed."""
        known = attr in _METHODS or not isinstance(obj, str | bytes | int | float | list | tuple | dict | set)
        return known and super().is_safe_attribute(obj, attr, value)

    def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
        """Compute products and remainders, which are allowed for numbers only."""
        if not (isinstance(left, int | float) and isinstance(right, int | float)):
            raise jinja2.exceptions.SecurityError(f"{operator} needs numbers")
        if operator == "**" or max(abs(left), abs(right)) > _NUMBER:
            raise jinja2.exceptions.SecurityError(f"the number is too large ({operator})")
        return super().call_binop(context, operator, left, right)


class _Generation(Extension):
    """The tag {% generation %}, with which transformers marks the assistant's words: its body is rendered."""

    tags = {"generation"}  # noqa: RUF012 - jinja2 declares it so

    def parse(self, parser: jinja2.parser.Parser) -> list[jinja2.nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _indent(text: str, width: int | str = 4, first: bool = False, blank: bool = False) -> str:
    """Indent lines as jinja2's filter does, by at most _WIDEST blanks."""
    if len(width) > _WIDEST if isinstance(width, str) else width > _WIDEST:
        raise jinja2.exceptions.SecurityError(f"an indentation has at most {_WIDEST} characters")
    return jinja2.filters.do_indent(str(text), width, first, blank)


def _bounded(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return the filter with its first argument, a number of parts or items, limited to _LARGEST."""

    @wraps(function)
    def bounded(value: Any, *arguments: Any, **named: Any) -> Any:
        counts = [n for n in (*arguments, *named.values()) if isinstance(n, int)]
        if max(counts, default=0) > _LARGEST:
            raise jinja2.exceptions.SecurityError(f"at most {_LARGEST} parts")
        return function(value, *arguments, **named)

    return bounded


class _RefusedError(Exception):
    """A call of raise_exception by the template."""


def _raise_exception(message: object) -> NoReturn:
    raise _RefusedError(str(message))


def _to_json(value: Any, ensure_ascii: bool = False, indent: int | None = None) -> str:
    """Return JSON without the HTML escapes of jinja2's own filter, as transformers does."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=None if indent is None else min(indent, 8))


@lru_cache(2)
def _parsed(source: str) -> jinja2.Template:
    return ChatEnvironment().from_string(source)


def answer(line: bytes, longest: int) -> dict[str, str]:
    """Return the answer to one request, of at most `longest` characters; never raises."""
    try:
        request = json.loads(line)
        template = _parsed(request["source"])
        return {"text": _render(template, request["variables"], longest) if "variables" in request else ""}
    except _RefusedError as exc:
        return {"refused": str(exc)[:_MESSAGE]}
    except MemoryError:
        return {"failed": "it exceeds the memory limit of a template"}
    except Exception as exc:  # noqa: BLE001 - a template may fail in any way
        return {"failed": f"{type(exc).__name__}: {exc}"[:_MESSAGE]}


def _render(template: jinja2.Template, variables: Mapping[str, Any], longest: int) -> str:
    pieces: list[str] = []
    size = 0
    for piece in template.generate(variables):
        size += len(piece)
        if size > longest:
            raise ValueError(f"it writes more than {longest} characters")
        pieces.append(piece)
    return "".join(pieces)


def _limit(memory: int, seconds: int) -> Callable[[], None]:
    """Restrict this process to the resources of a template.

    Returns a function that grants the next request its `seconds` of processor time. The limit also ends a process whose
    parent has died.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # interrupts are for the parent
    try:
        import resource
    except ImportError:  # on Windows only the parent limits the process
        return lambda: None

    def set_limit(kind: int, soft: int) -> None:
        with suppress(OSError, ValueError):
            resource.setrlimit(kind, (soft, resource.getrlimit(kind)[1]))

    with suppress(OSError):  # outside Linux only the parent limits the memory
        with open("/proc/self/statm", encoding="ascii") as file:
            own = int(file.read().split()[0]) * resource.getpagesize()
        set_limit(resource.RLIMIT_AS, own + memory)
    for kind in (resource.RLIMIT_CORE, resource.RLIMIT_FSIZE):
        set_limit(kind, 0)
    set_limit(resource.RLIMIT_NOFILE, 3)

    def allow() -> None:
        usage = resource.getrusage(resource.RUSAGE_SELF)
        set_limit(resource.RLIMIT_CPU, int(usage.ru_utime + usage.ru_stime) + seconds + 1)

    return allow


_WARM_UP: Final = (
    b"""{"source": "{{ strftime_now('%Y') }}{{ [] | tojson }}{{ raise_exception(1) }}", "variables": {}}"""
)


def main(memory: int, seconds: int, longest: int) -> None:
    """Answer requests until stdin ends."""

    def say(line: str) -> None:
        sys.stdout.write(line + "\n")
        sys.stdout.flush()

    answer(_WARM_UP, longest)  # load lazy modules before files can no longer be opened
    allow = _limit(memory, seconds)
    say("ready")
    for line in sys.stdin.buffer:
        allow()
        say(json.dumps(answer(line, longest)))


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
