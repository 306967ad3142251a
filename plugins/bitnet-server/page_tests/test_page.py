"""Use of the chat page: send, stop, edit, continue; and its accessibility."""

from __future__ import annotations

import os
import time
import urllib.request
from typing import Any

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import expect


def test_a_conversation(chat: Any) -> None:
    page = chat.page
    chat.say("Tell me a story.")
    first = chat.answered().inner_text()
    assert len(first) > 10
    expect(page.locator(".tools span").last).to_contain_text("tokens/s")
    expect(page.locator("#figures")).to_contain_text("of 1,024 tokens")
    chat.say("And then?")
    chat.answered(2)
    page.reload()
    expect(page.locator(".message")).to_have_count(4)
    expect(page.locator("#list .here")).to_contain_text("Tell me a story.")
    page.keyboard.press("Control+k")
    expect(page.locator("#empty")).to_be_visible()
    page.locator("#list .open", has_text="Tell me").click()
    expect(page.locator(".message.assistant .body").first).to_have_text(first)


def test_regenerate_edit_and_continue(chat: Any) -> None:
    page = chat.page
    chat.say("Tell me a story.")
    first = chat.answered().inner_text()
    page.get_by_label("Continue this answer").click()
    expect(page.locator(".message.assistant .tools")).to_be_visible(timeout=30_000)
    assert chat.answered().inner_text().startswith(first[:10])
    assert len(chat.body.inner_text()) > len(first)
    page.get_by_label("Write another answer").click()
    expect(page.locator(".message.assistant .tools")).to_be_visible(timeout=30_000)
    assert chat.answered().inner_text() == first  # greedy
    page.get_by_label("Message", exact=True).press("ArrowUp")
    page.get_by_label("Edited message").fill("Tell me about a cat.")
    page.keyboard.press("Control+Enter")
    chat.answered()
    expect(page.locator(".message.user .body")).to_have_text("Tell me about a cat.")


def test_stop_frees_the_place(chat: Any) -> None:
    page = chat.page
    page.evaluate("localStorage.setItem('bitnet.settings', JSON.stringify({max_tokens: 900, temperature: 1.2}))")
    page.reload()
    chat.say("Tell me a long story.")
    expect(chat.body).not_to_be_empty(timeout=20_000)
    page.keyboard.press("Escape")
    chat.answered()
    end = time.monotonic() + 10
    while b"bitnet:num_requests_running{" in (text := urllib.request.urlopen(chat.url + "/metrics").read()):
        line = next(line for line in text.splitlines() if line.startswith(b"bitnet:num_requests_running{"))
        if line.endswith(b" 0.0"):
            break
        assert time.monotonic() < end
    expect(chat.body).not_to_be_empty()


def test_an_answer_goes_on_while_another_chat_is_shown(chat: Any) -> None:
    page = chat.page
    page.evaluate("localStorage.setItem('bitnet.settings', JSON.stringify({max_tokens: 150, temperature: 0}))")
    page.reload()
    chat.say("Tell me a story.")
    expect(chat.body).not_to_be_empty(timeout=20_000)
    page.get_by_role("button", name="New chat").click()
    expect(page.locator("#empty")).to_be_visible()
    expect(page.locator("#list .beat")).to_have_count(0, timeout=30_000)
    page.locator("#list .open", has_text="Tell me").click()
    expect(page.locator(".message.assistant .tools span").last).to_contain_text("150 tokens")


def test_errors_can_be_read_and_tried_again(chat: Any) -> None:
    chat.chunks({"error": {"message": "the queue is full", "code": "queue_full"}}, end="")
    chat.say("Hello")
    expect(chat.page.get_by_role("alert")).to_contain_text("the queue is full")
    chat.canned("Here I am.")
    chat.page.get_by_role("button", name="Try again").click()
    expect(chat.answered()).to_have_text("Here I am.")
    chat.refused(429, "the queue is full")
    chat.say("And now?")
    expect(chat.page.get_by_role("alert")).to_be_visible()
    chat.page.reload()
    chat.canned("Now as well.")
    chat.page.get_by_label("Answer this message").click()
    expect(chat.answered(2)).to_have_text("Now as well.")
    chat.wrong.clear()


def test_a_broken_stream_keeps_what_has_come(chat: Any) -> None:
    chat.chunks({"choices": [{"delta": {"content": "Half of"}}]}, end="")
    chat.say("Hello")
    expect(chat.page.get_by_role("alert")).to_contain_text("The connection broke off.")
    expect(chat.answered()).to_have_text("Half of")
    chat.canned(" it, and the rest.")
    chat.page.get_by_role("button", name="Try again").click()
    expect(chat.body).to_have_text("Half of it, and the rest.")
    assert chat.sent[-1]["messages"][-1] == {"role": "assistant", "content": "Half of"}


@pytest.mark.parametrize(("scheme", "width"), [("light", 390), ("dark", 1280)])
def test_it_can_be_used_by_everybody(visit: Any, scheme: Any, width: int) -> None:
    """axe finds nothing, nothing is wider than the screen, and pictures are kept where PAGE_PICTURES says."""
    chat = visit()
    page = chat.page
    page.emulate_media(color_scheme=scheme)
    page.set_viewport_size({"width": width, "height": 800})
    for step in ("empty", "talk", "full", "settings", "list"):
        if step == "talk":
            chat.canned(TALK, usage={"total_tokens": 1000, "completion_tokens": 300})
            chat.attach("notes.txt", b"one\ntwo\n")
            chat.say("Show me some code, please")
            chat.answered()
            page.get_by_label("Write another answer").click()
            expect(chat.answered().locator("math").first).to_be_visible()
            expect(chat.body.locator(".hljs-string").first).to_be_visible()
            page.locator("details.file summary").click()
        elif step == "full":
            chat.refused(400, "too long", "context_length_exceeded")
            chat.say("And this?")
            expect(page.get_by_role("alert")).to_be_visible()
            chat.wrong.clear()
        elif step == "settings":
            page.get_by_role("button", name="Settings").click()
        elif step == "list":
            page.keyboard.press("Escape")
            page.keyboard.press("Control+/")
            page.get_by_label("Search chats").fill("code")
            page.wait_for_timeout(300)
        found = Axe().run(page).response["violations"]
        assert [(v["id"], [n["target"] for n in v["nodes"]]) for v in found] == [], step
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), step
        if folder := os.environ.get("PAGE_PICTURES"):
            page.screenshot(path=f"{folder}/{scheme}-{width}-{step}.png")


TALK = r"""Some **words** with `code`:

```python
print('a long line of code that goes on ' * 9, 'a long line of code that goes on ' * 9)
```

1. x
2. $\frac{a}{b}$

- [x] done
- [ ] to do

| Name | A column with a long header | Age |
|---|---|---|
| Alice | internationalization of everything | 100 |

$$\sum_{i=1}^n i = \frac{n(n+1)}{2} + a_1 + a_2 + a_3 + a_4 + a_5 + a_6 + a_7 + a_8 + a_9 + a_{10} + a_{11}$$
"""
