"""Texts for asyncio: the steps of the engine run in threads of the model's own, the loop goes on meanwhile."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Generator
from concurrent.futures import Executor

from bitnet_hal.errors import BitnetError

from bitnet_core.engine.output import Generation, GenerationStream, TextChunk


class AsyncGeneration:
    """One text, to be awaited as a whole or read piece by piece with `async for`; `.result` is there afterwards.

    Nothing is computed before. Where the task is cancelled, or the iteration left, the text ends.
    """

    def __init__(self, begin: Callable[[], GenerationStream], threads: Executor) -> None:
        self._begin, self._threads = begin, threads
        self._stream: GenerationStream | None = None

    @property
    def result(self) -> Generation:
        """The whole text; only after the last piece."""
        if self._stream is None:
            raise BitnetError("the generation has not started: await it, or read its chunks")
        return self._stream.result

    def __await__(self) -> Generator[object, None, Generation]:
        return self._whole().__await__()

    async def __aiter__(self) -> AsyncIterator[TextChunk]:
        if self._stream is not None:
            raise BitnetError("the generation was started already: request another one")
        import asyncio  # where it is used: a first text must come at once

        loop = asyncio.get_running_loop()
        self._stream = stream = await loop.run_in_executor(self._threads, self._begin)
        step = None
        try:
            while True:
                step = loop.run_in_executor(self._threads, next, stream, None)
                chunk = await asyncio.shield(step)
                if chunk is None:
                    return
                yield chunk
        finally:
            if step is not None and not step.done():  # a thread is in the middle of a step, and ends the text after it
                step.add_done_callback(lambda _: self._threads.submit(stream.close))
            else:
                stream.close()

    async def _whole(self) -> Generation:
        async for _ in self:
            pass
        return self.result
