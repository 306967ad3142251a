"""Output that follows a JSON schema, a regular expression or a grammar, by llguidance (an optional dependency)."""

from __future__ import annotations

import hashlib
import json
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from threading import Lock
from typing import TYPE_CHECKING, Any, Final, Literal

import numpy as np
from bitnet_hal.errors import UsageError, short

from bitnet_core import gbnf, json_limits
from bitnet_core.engine.request.reasoning import ReasoningLimit
from bitnet_core.engine.sampling.constraint import Constraint, Mask
from bitnet_core.grammar_limits import lark_fault, references_fault, regex_fault, schemas_in
from bitnet_core.schema_keywords import costly, with_exact_bounds, without_leap_seconds, without_noops
from bitnet_core.schemas import closed
from bitnet_core.tokenizer import Tokenizer

if TYPE_CHECKING:
    import llguidance

MAX_GRAMMAR: Final = 256 << 10  # characters of a schema, an expression or a grammar
MAX_DEPTH: Final = 64  # nesting levels of objects and lists
_KEPT: Final = 64  # compiled grammars kept
_REFUSALS_KEPT: Final = 1024  # grammars whose refusals are kept
_STEP_ITEMS: Final = 2000  # parser items of a mask, about 10 ms: all requests wait for a mask
_PROBED: Final = 4  # masks that are computed before a request starts

JSON_STYLE: Final[Any] = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}
"""White space is fixed, because small models may generate it endlessly."""


@dataclass(frozen=True, slots=True)
class Grammar:
    """A grammar. text: a JSON schema, a regular expression (Rust's syntax), or a grammar in llguidance's dialect of
    Lark. probes: beginnings of outputs, whose next masks are computed before a request starts."""

    kind: Literal["json", "regex", "lark"]
    text: str
    probes: tuple[str, ...] = ("",)

    def __post_init__(self) -> None:
        if len(self.text) > MAX_GRAMMAR:
            raise UsageError(f"a grammar has {len(self.text)} characters; the limit is {MAX_GRAMMAR}")

    @property
    def digest(self) -> bytes:
        """A hash of the grammar."""
        return hashlib.sha256(repr((self.kind, self.text, self.probes)).encode()).digest()


def json_grammar(schema: Any) -> Grammar:
    """Return the grammar of a JSON schema with its objects closed (see `schemas.closed`). Raises UsageError if the
    schema is not an object, or too deep."""
    if reason := costly(checked := checked_schema(schema)):
        raise UsageError(f"the JSON schema cannot be used: {reason}")
    try:
        return Grammar("json", json.dumps(checked))
    except (TypeError, ValueError) as exc:  # Python objects, or a value that contains itself
        raise UsageError(f"the JSON schema is not valid JSON: {exc}") from exc


def checked_schema(schema: Any) -> Any:
    """Return a JSON schema with its objects closed and its integers exact, without no-ops and leap seconds. Raises
    UsageError if it is not an object, or too deep."""
    if not isinstance(schema, Mapping | bool):
        raise UsageError("a JSON schema must be an object")
    if problem := json_limits.exceeds_limits(schema, MAX_DEPTH, MAX_GRAMMAR):
        raise UsageError(f"the parts of the JSON schema {problem}")
    if fault := references_fault(schema):
        raise UsageError(f"the JSON schema cannot be used: {fault}")
    return {} if schema is True else closed(with_exact_bounds(without_leap_seconds(without_noops(schema))))


def grammar_of(response_format: Mapping[str, Any] | None) -> Grammar | None:
    """Return the grammar for OpenAI's response_format, None for plain text.

    {"type": "text"}, {"type": "json_object"} (with "schema" as in llama.cpp), {"type": "json_schema", "json_schema":
    {"schema": ...}}, {"type": "regex", "regex": ...}, {"type": "grammar", "grammar": ...} (Lark, or llama.cpp's
    GBNF). Raises UsageError for anything else.
    """
    if response_format is None:
        return None
    if not isinstance(response_format, Mapping):
        raise UsageError(f"response_format must be a mapping, not {short(response_format)}")
    kind = response_format.get("type")
    if kind == "text":
        return None
    if kind == "json_object":
        return json_grammar(response_format.get("schema") or {"type": "object"})
    if kind == "json_schema":
        inner = response_format.get("json_schema")
        if not isinstance(inner, Mapping) or inner.get("schema") is None:
            raise UsageError("response_format json_schema has no json_schema.schema")
        return json_grammar(inner["schema"])
    if kind == "regex" and isinstance(text := response_format.get("regex"), str):
        return _within_limits(Grammar("regex", text), regex_fault(text))
    if kind == "grammar" and isinstance(text := response_format.get("grammar"), str):
        return _lark_grammar(gbnf.lark(text) if gbnf.is_gbnf(text) else text)
    raise UsageError(
        "response_format must be of type text, json_object, json_schema, regex (with regex) or grammar (with grammar), "
        f"not {str(kind)[:40]!r}"
    )


def _lark_grammar(text: str) -> Grammar:
    grammar = _within_limits(Grammar("lark", text), lark_fault(text))
    for schema in schemas_in(text):
        json_grammar(schema)  # checks the limits of a schema of its own
    return grammar


def _within_limits(grammar: Grammar, fault: str) -> Grammar:
    if fault:
        raise UsageError(f"the grammar cannot be used: {fault}")
    return grammar


class Grammars:
    """A compiler of grammars for one model's tokens. Safe to use from several threads.

    Raises UsageError if llguidance is not installed, and for grammars that it rejects.
    """

    def __init__(self, tokenizer: Tokenizer, vocab: int) -> None:
        try:
            import llguidance
        except ImportError as exc:
            raise UsageError("structured output needs the package llguidance: pip install llguidance") from exc
        self._library = llguidance
        words = llguidance.TokenizerWrapper(_Words(tokenizer, vocab))
        self._tokens = llguidance.LLTokenizer(words, n_vocab=vocab, eos_token=sorted(tokenizer.eos_ids) or None)
        self._made: OrderedDict[Grammar, llguidance.LLMatcher] = OrderedDict()
        self._refused: OrderedDict[bytes, str] = OrderedDict()  # by Grammar.digest
        self._lock = Lock()

    def constraint(self, grammar: Grammar) -> MatcherConstraint:
        """Create the constraint of one request."""
        with self._lock:
            matcher, refusal = self._made.pop(grammar, None), self._refused.get(grammar.digest)
        if refusal is not None:
            raise UsageError(refusal)
        if matcher is None:
            matcher = self._checked(grammar)
        with self._lock:
            self._made[grammar] = matcher
            if len(self._made) > _KEPT:
                self._made.popitem(last=False)
        return MatcherConstraint(matcher.deep_copy(), grammar)

    def _checked(self, grammar: Grammar) -> llguidance.LLMatcher:
        """Compile a grammar and compute its first masks. A rejection is cached, so that repeating it costs nothing."""
        try:
            matcher = self._compiled(grammar)
            for text in grammar.probes:
                self._probe(matcher.deep_copy(), text)
        except UsageError as exc:
            with self._lock:
                self._refused[grammar.digest] = str(exc)
                if len(self._refused) > _REFUSALS_KEPT:
                    self._refused.popitem(last=False)
            raise
        return matcher

    def _compiled(self, grammar: Grammar) -> llguidance.LLMatcher:
        make = self._library.LLMatcher
        try:
            if grammar.kind == "json":
                text = make.grammar_from_json_schema(grammar.text, overrides=JSON_STYLE)
            else:
                text = {"regex": make.grammar_from_regex, "lark": make.grammar_from_lark}[grammar.kind](grammar.text)
        except ValueError as exc:
            raise UsageError(f"the grammar cannot be used: {exc}") from exc
        limits = self._library.LLParserLimits(verbose_errors=False, step_max_items=_STEP_ITEMS)
        return make(self._tokens, text, log_level=0, limits=limits)

    def _probe(self, matcher: llguidance.LLMatcher, text: str) -> None:
        """Compute the masks after a text. Raises UsageError for a grammar that takes too many parser items, here rather
        than in a step that requests share."""
        for token in self._tokens.tokenize_str(text):
            matcher.consume_token(token)
        for _ in range(_PROBED):
            mask = np.frombuffer(matcher.compute_bitmask(), np.uint8)
            allowed = np.flatnonzero(np.unpackbits(mask, bitorder="little"))
            if len(allowed) and not matcher.is_stopped():
                matcher.consume_token(int(allowed[0]))
            if matcher.is_error():
                raise UsageError(f"the grammar cannot be used: {matcher.get_error().strip()[:500]}")
            if matcher.is_stopped():
                return
            if not len(allowed):
                raise UsageError("the grammar cannot be used: no text conforms to it")


class MatcherConstraint:
    """A constraint of one request, by a matcher of llguidance (see engine.sampling.constraint.Constraint). Pickled, it
    is an UncompiledConstraint: its state is lost."""

    def __init__(self, matcher: llguidance.LLMatcher, grammar: Grammar) -> None:
        self._matcher = matcher
        self._grammar = grammar

    def __reduce__(self) -> tuple[type[UncompiledConstraint], tuple[Grammar]]:
        return UncompiledConstraint, (self._grammar,)

    def mask(self) -> Mask:
        """Return i32[ceil(V / 32)], the tokens that the grammar allows next."""
        mask = np.frombuffer(self._matcher.compute_bitmask(), np.int32)
        self._check()
        return mask

    def accept(self, token: int) -> bool:
        """Advance by a token. Returns False if the grammar's text is complete."""
        self._matcher.consume_token(token)
        self._check()
        return not self._matcher.is_stopped()

    def copy(self) -> MatcherConstraint:
        """Return an independent constraint in the same state."""
        return MatcherConstraint(self._matcher.deep_copy(), self._grammar)

    def _check(self) -> None:
        if self._matcher.is_error():
            raise UsageError(f"the grammar cannot continue: {self._matcher.get_error().strip()[:500]}")


class UncompiledConstraint:
    """The grammar of a constraint that was sent from another process; `compiled` compiles it again."""

    def __init__(self, grammar: Grammar) -> None:
        self.grammar = grammar


def compiled(constraint: Constraint | UncompiledConstraint, grammars: Callable[[Grammar], Constraint]) -> Constraint:
    """Return a constraint from another process in its initial state. grammars: compiles a grammar."""
    if isinstance(constraint, UncompiledConstraint):
        return grammars(constraint.grammar)
    if isinstance(constraint, ReasoningLimit) and constraint.inner is not None:
        constraint.inner = compiled(constraint.inner, grammars)
    return constraint


class _Words:
    """The vocabulary in llguidance's form: the bytes of ordinary tokens, 0xff and a name for the others."""

    def __init__(self, tokenizer: Tokenizer, vocab: int) -> None:
        self._tokenizer = tokenizer
        pieces = [tokenizer.token_bytes(token) for token in range(vocab)]
        self.tokens = [piece or b"\xff[%d]" % token for token, piece in enumerate(pieces)]
        self.special_token_ids = [token for token, piece in enumerate(pieces) if not piece]
        self.eos_token_id = min(tokenizer.eos_ids, default=0)
        self.bos_token_id = tokenizer.bos_id

    def __call__(self, text: str | bytes) -> list[int]:
        plain = text.decode("utf-8", "replace") if isinstance(text, bytes) else text
        return self._tokenizer.encode(plain, add_bos=False)
