"""Generation for asyncio: engine steps run in the model's threads and do not block the event loop."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Generator
from concurrent.futures import Executor
from contextlib import suppress
from typing import TYPE_CHECKING, TypeVar

from bitnet_hal.errors import BitnetError

from bitnet_core.engine.output import Generation, GenerationStream, TextChunk
from bitnet_core.engine.worker import closed

if TYPE_CHECKING:
    from asyncio import Future


T = TypeVar("T")


async def _outcome(call: Future[T]) -> T:
    """Wait for a call, which continues if the task is cancelled. Raises UsageError if closing the model dropped it."""
    import asyncio

    try:
        return await asyncio.shield(call)
    except asyncio.CancelledError:
        if call.cancelled():
            raise closed() from None
        raise


class AsyncGeneration:
    """An asynchronous generation: await it for the Generation, or iterate over its TextChunks with `async for` and then
    read `.result`.

    The request starts with the first await. Cancelling the task or leaving the iteration ends the request.
    """

    def __init__(self, begin: Callable[[], GenerationStream], threads: Executor) -> None:
        self._begin = begin
        self._threads = threads
        self._stream: GenerationStream | None = None

    @property
    def result(self) -> Generation:
        """The finished generation; available after the last chunk."""
        if self._stream is None:
            raise BitnetError("the generation has not started: await it, or read its chunks")
        return self._stream.result

    def __await__(self) -> Generator[object, None, Generation]:
        return self._whole().__await__()

    async def __aiter__(self) -> AsyncIterator[TextChunk]:
        if self._stream is not None:
            raise BitnetError("the generation has already started: create another one")
        self._stream = stream = await _outcome(self._queued(self._begin))
        step = None
        try:
            while True:
                step = self._queued(next, stream, None)
                chunk = await _outcome(step)
                if chunk is None:
                    return
                yield chunk
        finally:
            if step is not None and not step.done():  # the request ends after the step that its thread is running
                step.add_done_callback(lambda _: self._end(stream))
            else:
                stream.close()

    def _queued(self, function: Callable[..., T], *arguments: object) -> Future[T]:
        """Start a call in the model's threads. Raises UsageError if the model is closed."""
        import asyncio  # imported here because it would delay the first token of synchronous programs

        try:
            return asyncio.get_running_loop().run_in_executor(self._threads, function, *arguments)
        except RuntimeError as exc:  # the pool is shut down
            raise closed() from exc

    def _end(self, stream: GenerationStream) -> None:
        with suppress(RuntimeError):  # the model is closed, which ended the request
            self._threads.submit(stream.close)

    async def _whole(self) -> Generation:
        async for _ in self:
            pass
        return self.result
