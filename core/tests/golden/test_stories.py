"""The shipped model on the numpy device says what transformers says, token for token."""

from __future__ import annotations

import bitnet_core
from bitnet_core.testing.model import golden_stories


def test_golden_data_is_safe() -> None:
    stories = golden_stories()
    assert len({story.text for story in stories}) == 5
    for story in stories:
        assert len(story.ids) == 64
        assert story.margin >= 0.5


def test_greedy_continuations() -> None:
    """One text at a time; the kit's model rule takes all of them in one batch, with both kinds of cache."""
    with bitnet_core.load("stories", "numpy") as model:
        for story in golden_stories()[:2]:
            result = model.generate(story.prompt_ids, max_tokens=64)
            assert tuple(result.tokens) == story.ids, story.prompt
            assert result.text == story.text


def test_prompts_give_the_same_tokens() -> None:
    with bitnet_core.load("stories", "numpy") as model:
        plain = [story for story in golden_stories() if "<|" not in story.prompt]
        assert len(plain) == 4
        for story in plain:
            assert tuple(model.tokenizer.encode(story.prompt, add_bos=True)) == story.prompt_ids
