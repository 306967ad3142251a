"""Benchmark an OpenAI-compatible server with streaming clients."""

from __future__ import annotations

import asyncio
import json
import random
import re
import ssl
import time
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import SplitResult, urlsplit

from bitnet_hal.errors import UsageError

_WORDS = "the cat sat on a mat and dog ran home big blue red one two three it was in side sun moon star tree river hill"
_TIMEOUT = 600.0
"""Timeout of one answer in seconds."""


@dataclass(slots=True)
class TimedAnswer:
    """The answer to one request. first, last: seconds from the request to the first and last chunk with text; gaps:
    seconds between such chunks."""

    first: float = 0.0
    last: float = 0.0
    tokens: int = 0
    chunks: int = 0  # with text
    error: str = ""
    gaps: list[float] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class ServerResult:
    """Result of a benchmark. seconds: duration of the whole run."""

    url: str
    model: str
    clients: int
    answers: tuple[TimedAnswer, ...]
    seconds: float

    @property
    def errors(self) -> list[str]:
        """The error message of each failed request."""
        return [answer.error for answer in self.answers if answer.error]

    def document(self) -> dict[str, Any]:
        """Return the result as a JSON object. Rates in tokens/s, times in ms; token_ms is the time from the first to
        the last chunk divided by the tokens after the first."""
        good = [answer for answer in self.answers if not answer.error]
        tokens = sum(answer.tokens for answer in good)
        each = [(answer.last - answer.first) / (answer.tokens - 1) for answer in good if answer.tokens > 1]
        return {
            "url": self.url,
            "model": self.model,
            "clients": self.clients,
            "requests": len(self.answers),
            "errors": len(self.errors),
            "seconds": round(self.seconds, 3),
            "tokens": tokens,
            "tokens_per_second": round(tokens / self.seconds, 1),
            "ttft_ms": _quantiles([answer.first for answer in good]),
            "token_ms": _quantiles(each),
            "chunk_gap_ms": _quantiles([gap for answer in good for gap in answer.gaps]),
        }


def prompt_of(number: int, words: int) -> str:
    """Return a prompt of `words` words, determined by `number`."""
    return " ".join(random.Random(number).choices(_WORDS.split(), k=words))


def measure_server(
    url: str, clients: int, requests: int, prompt_words: int, max_tokens: int, key: str = "", first: int = 0
) -> ServerResult:
    """Stream `requests` greedy completions, past the end token, to `clients` concurrent clients. The prompts are
    distinct: prompt_of(first), prompt_of(first + 1), ... If a server reports no usage, a chunk counts as one token.

    Raises UsageError if the URL is not valid or no server answers there.
    """
    return asyncio.run(_measure(url, clients, range(first, first + requests), prompt_words, max_tokens, key))


async def _measure(
    url: str, clients: int, prompts: range, prompt_words: int, max_tokens: int, key: str
) -> ServerResult:
    target = urlsplit(url)
    if target.scheme not in ("http", "https") or not target.hostname:
        raise UsageError(f"{url} is not an http:// or https:// address")
    connections = [_Connection(target, key) for _ in range(clients)]
    try:
        listed = json.loads(b"".join([part async for part in connections[0].ask("/v1/models", None)]))
        model = str(listed["data"][0]["id"])
        await asyncio.gather(*(connection.open() for connection in connections))  # not in the measured time
    except (OSError, ValueError, LookupError, TypeError) as exc:
        raise UsageError(f"no model answers at {url}: {exc}") from exc
    answers = [TimedAnswer() for _ in prompts]
    fixed = {"model": model, "max_tokens": max_tokens, "temperature": 0, "ignore_eos": True, "stream": True}
    fixed |= {"stream_options": {"include_usage": True}}
    bodies = [{**fixed, "prompt": prompt_of(number, prompt_words)} for number in prompts]
    calls = iter(zip(bodies, answers, strict=True))

    async def client(connection: _Connection) -> None:
        for body, answer in calls:
            await _one(connection, body, answer)
        connection.close()

    began = time.perf_counter()
    await asyncio.gather(*map(client, connections))
    return ServerResult(url, model, clients, tuple(answers), time.perf_counter() - began)


async def _one(connection: _Connection, body: dict[str, Any], answer: TimedAnswer) -> None:
    began = time.perf_counter()
    rest = b""
    done = False
    try:
        async with asyncio.timeout(_TIMEOUT):
            async for part in connection.ask("/v1/completions", body):
                *blocks, rest = (rest + part).split(b"\n\n")
                for block in blocks:
                    done |= block == b"data: [DONE]"
                    if block.startswith(b"data: {"):
                        _note(json.loads(block[6:]), time.perf_counter() - began, answer)
        if not done:
            answer.error = "the stream ended without [DONE]"
        answer.tokens = answer.tokens or answer.chunks
    except (OSError, ValueError, TimeoutError) as exc:
        connection.close()
        answer.error = str(exc) or type(exc).__name__


def _note(chunk: dict[str, Any], at: float, answer: TimedAnswer) -> None:
    if "error" in chunk:
        raise ValueError(chunk["error"].get("message"))
    if chunk.get("usage"):
        answer.tokens = chunk["usage"]["completion_tokens"]
    if any(choice.get("text") for choice in chunk["choices"]):
        answer.chunks += 1
        if answer.first:
            answer.gaps.append(at - answer.last)
        answer.first = answer.first or at
        answer.last = at


class _Connection:
    """A client's connection, reused for its next request if the server keeps it open."""

    def __init__(self, target: SplitResult, key: str) -> None:
        self._target, self._key = target, key
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def open(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """Open the connection unless it is open. Raises OSError."""
        if self._streams is None or self._streams[0].at_eof():
            self.close()
            secure = ssl.create_default_context() if self._target.scheme == "https" else None
            port = self._target.port or (443 if secure else 80)
            self._streams = await asyncio.open_connection(self._target.hostname, port, ssl=secure)
        return self._streams

    def close(self) -> None:
        """Close the connection; may be called twice."""
        if self._streams is not None:
            self._streams[1].close()
        self._streams = None

    async def ask(self, path: str, body: dict[str, Any] | None) -> Any:
        """Yield the parts of a response body as they arrive. Raises ValueError for a status other than 200."""
        reader, writer = await self.open()
        content = b"" if body is None else json.dumps(body).encode()
        writer.write(self._head("GET" if body is None else "POST", path, len(content)) + content)
        try:
            head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").lower()
            status = head.split(" ", 2)[1]
            length = re.search(r"\ncontent-length: *(\d+)", head)
            if status != "200":
                raise ValueError(f"status {status}: {(await reader.read(2000)).decode('utf-8', 'replace')[:200]}")
            if "transfer-encoding: chunked" in head:
                while size := int((await reader.readline()).split(b";")[0] or b"0", 16):
                    yield await reader.readexactly(size)
                    await reader.readline()
                await reader.readline()
            elif length is not None:
                yield await reader.readexactly(int(length[1]))
            else:
                yield await reader.read()
        except (asyncio.IncompleteReadError, asyncio.LimitOverrunError) as exc:
            raise ValueError("the connection was closed before the end of the response") from exc
        if "\nconnection: close" in head:
            self.close()

    def _head(self, method: str, path: str, length: int) -> bytes:
        target = self._target
        lines = [
            f"{method} {target.path.removesuffix('/').removesuffix('/v1')}{path} HTTP/1.1",
            f"Host: {target.netloc.rpartition('@')[2]}",
            f"Content-Length: {length}",
            "Content-Type: application/json",
            *([f"Authorization: Bearer {self._key}"] if self._key else []),
        ]
        return "\r\n".join([*lines, "", ""]).encode()


def _quantiles(values: list[float]) -> dict[str, float]:
    """Return p50 and p95 in ms, 0 if there are no values."""
    if not values:
        return {"p50": 0.0, "p95": 0.0}
    ordered = sorted(values)

    def quantile(share: float) -> float:
        return round(1e3 * ordered[min(len(ordered) - 1, int(share * len(ordered)))], 2)

    return {"p50": quantile(0.5), "p95": quantile(0.95)}
