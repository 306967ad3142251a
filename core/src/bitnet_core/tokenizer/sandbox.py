"""The jinja2 environment of chat templates: sandboxed, and bounded in the work and memory a template may spend.

A template comes with the model file, so it is as hostile as the file. Work is counted in one budget: a round of a
loop, a call and every value that an operator, filter, call or output touches (by its size). What can make much
from little (repetition, padding, powers) is refused.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import datetime
from typing import Any, Final, NoReturn

from jinja2 import nodes
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from bitnet_core.errors import TokenizerError, UsageError

MAX_WORK: Final = 2_000_000
MAX_SIZE: Final = 1 << 24  # characters and items of one value, and of the rendered text
_CHARACTERS_PER_STEP: Final = 64
_METHODS_REFUSED: Final = frozenset({"center", "ljust", "rjust", "zfill", "expandtabs", "format", "format_map"})
_FILTERS: Final = {
    *("abs", "capitalize", "count", "d", "default", "dictsort", "e", "escape", "first", "float", "int", "items"),
    *("join", "last", "length", "list", "lower", "map", "max", "min", "reject", "rejectattr", "replace", "reverse"),
    *("round", "safe", "select", "selectattr", "sort", "string", "title", "trim", "unique", "upper"),
}
_GLOBALS: Final = ("range", "dict", "namespace")


class ChatEnvironment(ImmutableSandboxedEnvironment):
    """jinja2 as transformers sets it up for chat templates (trimmed blocks, loop controls, raise_exception, tojson,
    strftime_now). Make one for each rendering: the budget is its own. TokenizerError when the budget is spent."""

    intercepted_binops = frozenset({"*", "**", "+", "%"})

    def __init__(self) -> None:
        super().__init__(trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"])
        self._work = 0
        self.filters = {name: self._metered(func) for name, func in self.filters.items() if name in _FILTERS}
        self.filters["tojson"] = self._metered(_to_json)
        self.filters["counted"] = self._counted
        self.filters["metered"] = self._metered(lambda value: value)
        self.globals = {name: self.globals[name] for name in _GLOBALS}
        self.globals["raise_exception"] = _raise_exception
        self.globals["strftime_now"] = lambda form: datetime.now().strftime(form)  # local time, as transformers
        self.finalize = self._weighed

    def _parse(self, source: str, name: str | None, filename: str | None) -> nodes.Template:
        template = Parser(self, source, name, filename).parse()
        for loop in template.find_all(nodes.For):
            loop.iter = _filtered("counted", loop.iter)
        for concat in template.find_all(nodes.Concat):
            concat.nodes = [_filtered("metered", node) for node in concat.nodes]
        for block in template.find_all(nodes.AssignBlock):
            block.filter = _filtered("metered", block.filter)
        return template

    def call(self, context: Any, func: Any, *args: Any, **kwargs: Any) -> Any:
        """A call in the template, with what it is given and what it returns weighed."""
        if getattr(func, "__name__", "") in _METHODS_REFUSED:
            raise TokenizerError(f"the chat template calls {func.__name__}(), which chat templates may not")
        self._weigh([getattr(func, "__self__", None) if not isinstance(func, type) else None, *args])
        if getattr(func, "__name__", "") == "replace" and isinstance(getattr(func, "__self__", None), str):
            _check_replacement(func.__self__, *args)
        return self._weighed(super().call(context, func, *args, **kwargs))

    def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
        """An arithmetic operation in the template, refused where a small input could make a huge result."""
        self._weigh([left, right])
        if operator != "+" and not (isinstance(left, int | float) and isinstance(right, int | float)):
            raise TokenizerError(f"the chat template uses {operator} on text or lists, which chat templates may not")
        if operator == "**" or max(_magnitude(left), _magnitude(right)) > 1 << 62:
            raise TokenizerError(f"the chat template computes too large a number ({operator})")
        return super().call_binop(context, operator, left, right)

    def _counted(self, items: Iterable[Any]) -> Iterator[Any]:
        for item in items:
            self._spend(1)
            yield item

    def _metered(self, func: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(func)  # keeps jinja2's mark of filters that want the environment or context first
        def metered(*args: Any, **kwargs: Any) -> Any:
            values = args[1:] if hasattr(func, "jinja_pass_arg") else args
            self._weigh([*values, *kwargs.values()])
            if func.__name__ == "do_replace":
                _check_replacement(str(values[0]), *values[1:])
            return func(*args, **kwargs)

        return metered

    def _weighed(self, value: Any) -> Any:
        self._weigh(value)
        return value

    def _weigh(self, value: Any) -> None:
        """Spend by the size of a value with everything in it, however often a part is shared."""
        size = 0
        pending = [value]
        while pending:
            item = pending.pop()
            if isinstance(item, str):
                size += len(item)
                self._spend(1 + len(item) // _CHARACTERS_PER_STEP)
            else:
                self._spend(1)
                if isinstance(item, Mapping):
                    pending.extend(item.keys())
                    pending.extend(item.values())
                elif isinstance(item, list | tuple | set):
                    pending.extend(item)
            if max(size, len(pending)) > MAX_SIZE:
                raise TokenizerError(f"the chat template makes a value of over {MAX_SIZE} characters")

    def _spend(self, steps: int) -> None:
        self._work += steps
        if self._work > MAX_WORK:
            raise TokenizerError(f"the chat template does not come to an end (stopped after {MAX_WORK} steps)")


def _filtered(name: str, node: Any) -> nodes.Filter:
    return nodes.Filter(node, name, [], [], None, None, lineno=1 if node is None else node.lineno)


def _magnitude(value: Any) -> float:
    return abs(value) if isinstance(value, int | float) else 0


def _check_replacement(text: str, old: Any = "", new: Any = "", *_: Any) -> None:
    if text.count(str(old)) * len(str(new)) > MAX_SIZE:
        raise TokenizerError(f"the chat template makes a value of over {MAX_SIZE} characters")


def _raise_exception(message: str) -> NoReturn:
    raise UsageError(f"the model's chat template refuses these messages: {message}")


def _to_json(value: Any, ensure_ascii: bool = False, indent: int | None = None) -> str:
    """JSON without the HTML escapes of jinja2's own filter, as transformers does."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=None if indent is None else min(indent, 8))
