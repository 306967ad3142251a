"""Requests of the page: files, settings of one chat and of all, the model, and a full context."""

from __future__ import annotations

import re
from typing import Any

from playwright.sync_api import expect

FULL = "This model's maximum context length is 1024 tokens"


def test_text_files_go_with_a_message(chat: Any) -> None:
    page = chat.page
    chat.canned("read")
    chat.attach("notes.md", b"# Notes\n")
    data = "new DataTransfer()"
    drop = f"const data = {data}; data.items.add(new File(['a,b'], 'data.csv')); return data"
    transfer = page.evaluate_handle(f"() => {{ {drop} }}")
    page.dispatch_event("#scroll", "drop", {"dataTransfer": transfer})
    expect(page.locator("#attached li")).to_have_count(2)
    for name, content, reason in (
        ("image.png", b"\x89PNG\0", "not a text file"),
        ("latin.txt", b"caf\xe9", "UTF-8"),
        ("big.txt", b"x" * 300_000, "256 KiB"),
    ):
        chat.attach(name, content)
        expect(page.get_by_role("alert")).to_contain_text(reason)
    chat.attach("unwanted.txt", b"x")
    page.get_by_label("Remove unwanted.txt").click()
    chat.say("What is in them?")
    chat.answered()
    text = "File notes.md:\n```\n# Notes\n```\n\nFile data.csv:\n```\na,b\n```\n\nWhat is in them?"
    assert chat.sent[0]["messages"] == [{"role": "user", "content": text}]
    expect(page.locator(".message.user .body")).to_have_text("What is in them?")
    expect(page.locator("details.file pre").first).to_be_hidden()
    page.locator("details.file summary", has_text="notes.md").click()
    expect(page.locator("details.file pre").first).to_have_text("# Notes")


def test_settings_of_a_chat_come_before_those_of_all(chat: Any) -> None:
    page = chat.page
    chat.canned("yes")
    page.get_by_role("button", name="Settings").click()
    page.get_by_text("All chats", exact=True).click()
    page.get_by_label("System prompt").fill("Be brief.")
    page.get_by_label("Top k").fill("7")
    page.get_by_text("This chat", exact=True).click()
    expect(page.get_by_label("System prompt")).to_have_value("")
    expect(page.get_by_label("Top k")).to_have_attribute("placeholder", "7")
    page.get_by_label("System prompt").fill("Be long.")
    page.get_by_label("Temperature").fill("9")
    page.get_by_role("button", name="Done").click()
    expect(page.get_by_label("Temperature")).to_be_focused()  # it is at most 2
    page.get_by_label("Temperature").fill("0.5")
    page.get_by_role("button", name="Done").click()
    chat.say("Go")
    chat.answered()
    page.reload()
    chat.say("On")
    chat.answered(2)
    page.keyboard.press("Control+k")
    chat.say("Go")
    chat.answered()
    for sent, system, temperature in zip(chat.sent, ("Be long.", "Be long.", "Be brief."), (0.5, 0.5, 0), strict=True):
        assert sent["messages"][0] == {"role": "system", "content": system}
        assert (sent["top_k"], sent["max_tokens"], sent["temperature"]) == (7, 24, temperature)


def test_a_menu_where_there_are_several_models(chat: Any) -> None:
    page = chat.page
    expect(page.get_by_label("Model", exact=True)).to_be_hidden()
    small = {"id": "small", "status": {"value": "loaded"}, "meta": {"n_ctx": 512}}
    large = {"id": "large", "status": {"value": "unloaded"}}
    page.route("**/v1/models", lambda route: route.fulfill(json={"object": "list", "data": [small, large]}))
    props = {"small": {"state": "loaded", "n_ctx": 512}, "large": {"state": "unloaded"}}
    page.route("**/props?model=*", lambda route: route.fulfill(json=props[route.request.url.partition("=")[2]]))
    page.reload()
    expect(page.get_by_label("Model", exact=True)).to_have_text(re.compile(r"small\s*large \(unloaded\)"))
    chat.canned("yes")
    chat.say("Go")
    chat.answered()
    page.get_by_label("Model", exact=True).select_option("large")
    expect(page.locator("#model")).to_have_text("loads with the first message")
    large |= {"status": {"value": "loaded"}, "meta": {"n_ctx": 4096}}
    props["large"] = {"state": "loaded", "n_ctx": 4096}
    chat.canned("yes", usage={"total_tokens": 100, "completion_tokens": 3})
    chat.say("On")
    chat.answered(2)
    assert [sent["model"] for sent in chat.sent] == ["small", "large"]
    page.reload()
    expect(page.get_by_label("Model", exact=True)).to_have_value("large")


def talk(chat: Any) -> None:
    """Make a conversation of three turns, the last of which does not fit."""
    for at in range(2):
        chat.canned(f"answer {at} " + "word " * 50)
        chat.say(f"question {at}")
        chat.answered(at + 1)
    chat.refused(400, FULL, "context_length_exceeded")
    chat.say("question 2")
    expect(chat.page.get_by_role("alert")).to_contain_text("fills the model's context of 1,024 tokens")
    chat.wrong.clear()


def test_a_full_context_without_the_oldest_turns(chat: Any) -> None:
    talk(chat)
    chat.canned("answer 2")
    chat.page.get_by_role("button", name="Leave out the oldest turns").click()
    expect(chat.answered(3)).to_have_text("answer 2")
    assert chat.sent[-1]["truncation"] == "auto"
    assert len(chat.sent[-1]["messages"]) == 5  # the server knows how many tokens they have
    chat.page.reload()
    chat.say("question 3")
    chat.answered(4)
    assert chat.sent[-1]["truncation"] == "auto"


def test_a_full_context_with_a_summary(chat: Any) -> None:
    talk(chat)
    chat.canned("in short")
    chat.page.get_by_role("button", name="Summarize them").click()
    expect(chat.answered(3)).to_have_text("in short")
    asked, sent = (request["messages"] for request in chat.sent[-2:])
    assert [message["content"][:10] for message in asked[:2]] == ["question 0", "answer 0 w"]
    assert asked[-1]["content"].startswith("Summarize our conversation")
    assert sent[0] == {"role": "system", "content": "The conversation so far, in short:\nin short"}
    assert [message["content"][:10] for message in sent[1:]] == ["question 1", "answer 1 w", "question 2"]
    chat.page.get_by_text("Earlier turns are sent to the model as a summary").click()
    expect(chat.page.locator(".fold div")).to_have_text("in short")
    expect(chat.page.locator(".message")).to_have_count(6)  # nothing is lost


def test_a_full_context_left_for_a_new_chat(chat: Any) -> None:
    talk(chat)
    chat.canned("fresh")
    chat.page.get_by_role("button", name="Start a new chat").click()
    expect(chat.answered()).to_have_text("fresh")
    assert [message["content"] for message in chat.sent[-1]["messages"]] == ["question 2"]
    expect(chat.page.locator("#list .open")).to_have_count(2)


def test_a_message_that_cannot_fit(chat: Any) -> None:
    chat.refused(400, FULL, "context_length_exceeded")
    chat.say("word " * 2000)
    expect(chat.page.get_by_role("alert")).to_contain_text("message alone does not fit")
    chat.canned("shorter")
    chat.page.get_by_role("button", name="Edit the message").click()
    chat.page.get_by_label("Edited message").fill("word")
    chat.page.keyboard.press("Control+Enter")
    expect(chat.answered()).to_have_text("shorter")
    assert [message["content"] for message in chat.sent[-1]["messages"]] == ["word"]
    chat.wrong.clear()


def test_the_server_leaves_out_turns_of_a_full_context(chat: Any) -> None:
    """The same with the server itself: a story that fills the context, and another question."""
    page = chat.page
    page.evaluate("localStorage.setItem('bitnet.settings', JSON.stringify({max_tokens: 8, temperature: 0}))")
    page.reload()
    chat.say("Tell me a story. " + "The cat sat on the mat. " * 70)
    chat.answered()
    chat.say("And then? " + "The dog sat on the log. " * 70)
    expect(page.get_by_role("alert")).to_contain_text("fills the model's context", timeout=20_000)
    page.get_by_role("button", name="Leave out the oldest turns").click()
    assert chat.answered(2).inner_text()
    chat.wrong[:] = [text for text in chat.wrong if "400" not in text]
