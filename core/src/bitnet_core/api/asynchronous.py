"""Generation for asyncio: engine steps run in the model's threads, so that they do not block the event loop."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Generator
from concurrent.futures import Executor

from bitnet_hal.errors import BitnetError

from bitnet_core.engine.output import Generation, GenerationStream, TextChunk
from bitnet_core.engine.worker import closed


class AsyncGeneration:
    """An asynchronous generation: await it for the Generation, or iterate over its TextChunks with `async for` and read
    `.result` afterwards.

    The request starts with the first await. Cancelling the task or leaving the iteration ends the request.
    """

    def __init__(self, begin: Callable[[], GenerationStream], threads: Executor) -> None:
        self._begin = begin
        self._threads = threads
        self._stream: GenerationStream | None = None

    @property
    def result(self) -> Generation:
        """The finished generation; only after the last chunk."""
        if self._stream is None:
            raise BitnetError("the generation has not started: await it, or read its chunks")
        return self._stream.result

    def __await__(self) -> Generator[object, None, Generation]:
        return self._whole().__await__()

    async def __aiter__(self) -> AsyncIterator[TextChunk]:
        if self._stream is not None:
            raise BitnetError("the generation has already started: create another one")
        import asyncio  # here, because a first token should not wait for the import

        loop = asyncio.get_running_loop()
        try:
            begun = loop.run_in_executor(self._threads, self._begin)
        except RuntimeError as exc:  # the pool takes no more work
            raise closed() from exc
        self._stream = stream = await begun
        step = None
        try:
            while True:
                step = loop.run_in_executor(self._threads, next, stream, None)
                chunk = await asyncio.shield(step)
                if chunk is None:
                    return
                yield chunk
        finally:
            if step is not None and not step.done():  # its thread is in a step, after which the request ends
                step.add_done_callback(lambda _: self._threads.submit(stream.close))
            else:
                stream.close()

    async def _whole(self) -> Generation:
        async for _ in self:
            pass
        return self.result
