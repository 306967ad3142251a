"""Several texts of one model: lists of prompts, threads, asyncio."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterator

import bitnet_core
import pytest
from bitnet_hal.errors import BitnetError, UsageError

PROMPTS = [f"Once there was a {animal}" for animal in ("cat", "dog", "fox", "bird", "fish", "bear")]
TOKENS = 4


@pytest.fixture(scope="module")
def model() -> Iterator[bitnet_core.Model]:
    with bitnet_core.load(None, "numpy", kv_cache_size=64 << 20) as loaded:  # whatever other programs leave free
        yield loaded


@pytest.fixture(scope="module")
def alone(model: bitnet_core.Model) -> list[str]:
    """The texts that the model writes one after the other."""
    return [model.generate(prompt, max_tokens=TOKENS).text for prompt in PROMPTS]


def test_a_list_of_prompts_gives_a_list_of_texts(model: bitnet_core.Model, alone: list[str]) -> None:
    steps = 0
    engine_step = model.engine.step

    def counted() -> object:
        nonlocal steps
        steps += 1
        return engine_step()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(model.engine, "step", counted)
        texts = model.generate(PROMPTS, max_tokens=TOKENS)
    assert [text.text for text in texts] == alone
    assert steps < len(PROMPTS) * TOKENS / 2  # together, not one after the other
    ids = [model.tokenizer.encode(prompt, add_bos=model.tokenizer.add_bos) for prompt in PROMPTS]
    assert [text.text for text in model.generate(ids, max_tokens=TOKENS)] == alone
    assert [text.text for text in model.generate(["a"], max_tokens=1)] == [model.generate("a", max_tokens=1).text]


def test_a_wrong_prompt_of_a_list_leaves_nothing_running(model: bitnet_core.Model) -> None:
    for prompts in (["a", ""], ["a", 5], ["a", "b " * 3000]):
        with pytest.raises(UsageError):
            model.generate(prompts, max_tokens=4)  # type: ignore[call-overload]
    with pytest.raises(UsageError, match="one prompt"):
        model.generate(["a", "b"], stream=True)  # type: ignore[call-overload]
    assert not model.engine.scheduler.running
    assert not model.engine.scheduler.waiting


def test_8_threads_of_6_texts_each_give_what_they_give_alone(model: bitnet_core.Model, alone: list[str]) -> None:
    found: dict[tuple[int, int], str] = {}

    def work(number: int) -> None:
        for at in range(6):
            found[number, at] = model.generate(PROMPTS[at], max_tokens=TOKENS).text

    threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == {(number, at): alone[at] for number in range(8) for at in range(6)}


def test_awaited_texts_are_made_together(model: bitnet_core.Model, alone: list[str]) -> None:
    async def main() -> list[str]:
        texts = await asyncio.gather(*(_text(model, prompt) for prompt in PROMPTS))
        return list(texts)

    assert asyncio.run(main()) == alone


async def _text(model: bitnet_core.Model, prompt: str) -> str:
    return (await model.agenerate(prompt, max_tokens=TOKENS)).text


def test_pieces_come_while_the_loop_goes_on(model: bitnet_core.Model, alone: list[str]) -> None:
    async def main() -> None:
        beats = 0

        async def beat() -> None:
            nonlocal beats
            while True:
                beats += 1
                await asyncio.sleep(0.001)

        other = asyncio.create_task(beat())
        text = model.agenerate(PROMPTS[0], max_tokens=TOKENS)
        with pytest.raises(BitnetError, match="not started"):
            _ = text.result
        chunks = [chunk.text async for chunk in text]
        assert "".join(chunks) == text.result.text == alone[0]
        assert len(chunks) >= TOKENS
        assert beats > 3
        with pytest.raises(BitnetError, match="already started"):
            await text
        answer = await model.achat([{"role": "user", "content": "Hello"}], max_tokens=2)
        assert len(answer.tokens) == 2
        other.cancel()

    asyncio.run(main())


def test_errors_come_where_the_text_is_awaited(model: bitnet_core.Model) -> None:
    async def main() -> None:
        with pytest.raises(UsageError, match="max_tokens"):
            await model.agenerate("a", max_tokens=0)

    asyncio.run(main())


def test_a_cancelled_text_gives_its_place_back(model: bitnet_core.Model) -> None:
    async def main() -> None:
        task = asyncio.create_task(_long(model))
        await asyncio.sleep(0.05)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        async for _ in model.agenerate("Once", max_tokens=200):
            break

    asyncio.run(main())
    end = time.monotonic() + 10
    while (model.engine.scheduler.running or model.engine.scheduler.waiting) and time.monotonic() < end:
        time.sleep(0.01)
    assert not model.engine.scheduler.running


async def _long(model: bitnet_core.Model) -> None:
    await model.agenerate("Once upon a time", max_tokens=400)


def test_closing_the_model_ends_what_asyncio_waits_for() -> None:
    """Texts under way, and those that wait for a thread, end with UsageError; nothing is cancelled or RuntimeError."""

    async def run() -> list[object]:
        model = bitnet_core.load(None, "numpy", kv_cache_size=64 << 20)
        try:
            chunks = model.agenerate("Once", max_tokens=100).__aiter__()
            await anext(chunks)
            others = [asyncio.ensure_future(model.agenerate("Once", max_tokens=100)._whole()) for _ in range(80)]
            await asyncio.sleep(0.05)
        finally:
            model.close()
        ended: list[object] = list(await asyncio.gather(*others, return_exceptions=True))
        with pytest.raises(UsageError, match="closed"):
            async for _ in chunks:
                pass
        return ended

    ended = asyncio.run(run())
    assert {type(one) for one in ended} == {UsageError}, ended
