"""Conversations: several tabs, branches, search, names, files in and out."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from playwright.sync_api import expect


def test_two_tabs_lose_nothing(chat: Any, visit: Any) -> None:
    other = visit()
    for tab, text in ((chat, "The first tab's question"), (other, "The second tab's question")):
        tab.canned("fine")
        tab.say(text)
        tab.answered()
    for tab in (chat, other):
        expect(tab.page.locator("#list .open")).to_have_count(2)
        tab.page.reload()
        expect(tab.page.locator("#list")).to_contain_text("The first tab's question")
        expect(tab.page.locator("#list")).to_contain_text("The second tab's question")


def test_two_tabs_write_to_one_conversation(chat: Any, visit: Any) -> None:
    chat.canned("one")
    chat.say("Begin")
    chat.answered()
    other = visit()
    usage = {"usage": {"completion_tokens": 2, "total_tokens": 9}, "timings": {"predicted_per_second": 7}}
    other.canned("two", **usage)
    other.say("Go on")
    other.answered(2)
    expect(chat.page.locator(".message")).to_have_count(4)  # the first tab follows
    expect(chat.page.locator(".tools span").last).to_have_text("2 tokens, 7.0 tokens/s")
    chat.say("And on")
    chat.answered(3)
    expect(other.page.locator(".message")).to_have_count(6)
    chat.page.on("dialog", lambda dialog: dialog.accept())
    chat.page.get_by_label("Delete Begin").click()
    expect(other.page.locator(".message")).to_have_count(0)


def test_conversations_of_the_former_page_are_adopted(chat: Any) -> None:
    old = [
        {
            "id": "1",
            "title": "Old",
            "changed": 5,
            "messages": [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Ho"}],
        }
    ]
    chat.page.evaluate("text => localStorage.setItem('bitnet.conversations', text)", json.dumps(old))
    chat.page.reload()
    chat.page.locator("#list .open", has_text="Old").click()
    expect(chat.body).to_have_text("Ho")
    assert chat.page.evaluate("Object.keys(localStorage).sort()") == ["bitnet.chat.1", "bitnet.settings"]


def test_edited_turns_are_branches(chat: Any) -> None:
    page = chat.page
    chat.canned("first answer")
    chat.say("first question")
    chat.answered()
    chat.canned("second answer")
    page.get_by_label("Edit and send again").click()
    page.get_by_label("Edited message").fill("second question")
    page.locator(".message .main").click()
    expect(chat.answered()).to_have_text("second answer")
    chat.canned("third answer")
    page.get_by_label("Write another answer").click()
    expect(chat.body).to_have_text("third answer")
    expect(page.locator(".user .count")).to_have_text("2/2")
    page.locator(".user").get_by_label("Earlier version").click()
    expect(chat.body).to_have_text("first answer")
    expect(page.locator(".assistant .count")).to_have_count(0)
    page.reload()
    expect(page.locator(".user .body")).to_have_text("first question")
    page.locator(".user").get_by_label("Later version").click()
    page.locator(".assistant").get_by_label("Earlier version").click()
    expect(chat.body).to_have_text("second answer")
    assert [message["content"] for message in chat.sent[-1]["messages"]] == ["second question"]


def test_an_answer_is_edited_and_a_message_deleted(chat: Any, visit: Any) -> None:
    page = chat.page
    page.on("dialog", lambda dialog: dialog.accept())
    for at in range(2):
        chat.canned(f"answer {at}")
        chat.say(f"question {at}")
        chat.answered(at + 1)
    page.get_by_label("Edit this answer").last.click()
    page.get_by_label("Edited message").fill("My answer")
    page.get_by_role("button", name="Keep").click()
    expect(chat.body).to_have_text("My answer")
    assert len(chat.sent) == 2
    other = visit()
    expect(other.body).to_have_text("My answer")
    page.get_by_label("Delete this and what follows").last.click()
    expect(chat.body).to_have_text("answer 1")
    expect(other.body).to_have_text("answer 1")
    page.get_by_label("Delete this and what follows").nth(2).click()
    expect(page.locator(".message")).to_have_count(2)
    expect(other.page.locator(".message")).to_have_count(2)
    other.canned("answer 2")
    other.say("question 2")
    other.answered(2)
    expect(page.locator(".message.user .body")).to_have_text(["question 0", "question 2"])


def test_an_answer_that_fails_leaves_the_one_before(chat: Any) -> None:
    chat.canned("good answer")
    chat.say("question")
    chat.answered()
    chat.refused(503, "busy")
    chat.page.get_by_label("Write another answer").click()
    expect(chat.page.get_by_role("alert")).to_contain_text("busy")
    expect(chat.body).to_have_text("good answer")
    chat.canned("other answer")
    chat.page.get_by_role("button", name="Try again").click()
    expect(chat.body).to_have_text("other answer")
    chat.wrong.clear()


def test_search(chat: Any) -> None:
    page = chat.page
    for text, answer in (("About winter", "Snow on the old roof"), ("About summer", "Sun")):
        page.keyboard.press("Control+k")
        chat.canned(answer)
        chat.say(text)
        chat.answered()
    page.keyboard.press("Control+/")
    page.keyboard.type("OLD snow")
    expect(page.locator("#list .open")).to_have_count(1)
    expect(page.locator("#list small")).to_contain_text("old roof")
    page.locator("#list .open").click()
    expect(chat.body).to_have_text("Snow on the old roof")
    page.get_by_label("Search chats").fill("spring")
    expect(page.locator("#nothing")).to_be_visible()


def test_conversations_are_renamed_exported_imported_and_deleted(chat: Any) -> None:
    page = chat.page
    chat.canned("fine")
    chat.say("How are you?")
    chat.answered()
    page.get_by_label("Rename How are you?").click()
    page.get_by_label("Title").fill("A greeting")
    page.keyboard.press("Enter")
    expect(page.locator("#title")).to_have_text("A greeting")
    with page.expect_download() as download:
        page.get_by_role("button", name="Export").click()
    path = download.value.path()
    page.on("dialog", lambda dialog: dialog.accept())
    page.get_by_label("Delete A greeting").click()
    expect(page.locator(".message")).to_have_count(0)
    page.locator("#file").set_input_files(path)
    page.locator("#list .open", has_text="A greeting").click()
    expect(page.locator(".message")).to_have_count(2)
    own_parent = {"id": "a", "parent": "a", "role": "user", "content": "c", "files": [{"name": "f", "text": "g"}]}
    odd = {
        "id": "x",
        "title": "odd",
        "messages": [own_parent, {"id": "b", "role": "system"}, own_parent],
        "settings": 5,
    }
    for conversations in ([odd], [odd, {"id": 5}]):
        content = json.dumps({"conversations": conversations}).encode()
        page.locator("#file").set_input_files({"name": "x", "mimeType": "application/json", "buffer": content})
    expect(page.get_by_role("alert")).to_contain_text("no conversations")
    page.locator("#list .open", has_text="odd").click()
    expect(page.locator(".message .body")).to_have_text("c")


def test_a_chat_as_markdown(chat: Any) -> None:
    page = chat.page
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    chat.canned("**fine**")
    chat.attach("a.txt", b"x\n```\ny\n")
    chat.say("How / are you?")
    chat.answered()
    with page.expect_download() as download:
        page.get_by_role("button", name="Save chat as Markdown").click()
    assert download.value.suggested_filename == "How-are-you.md"
    expected = (
        "# How / are you?\n\n## You\n\nFile a.txt:\n````\nx\n```\ny\n````\n\nHow / are you?\n\n## Answer\n\n**fine**\n"
    )
    assert Path(download.value.path()).read_text() == expected
    page.get_by_role("button", name="Copy chat as Markdown").click()
    expect(page.locator("#status")).to_have_text("Copied")
    assert page.evaluate("navigator.clipboard.readText()") == expected


def test_a_long_first_message_gives_a_short_title(chat: Any) -> None:
    chat.canned("fine")
    chat.say("Tell me everything\nthat you know about the long history of lighthouses in the north")
    chat.answered()
    expect(chat.page.locator("#title")).to_have_text("Tell me everything that you know about the long history of…")
    chat.page.keyboard.press("Control+k")
    chat.say("\N{FOX FACE}" * 70)
    chat.answered()
    expect(chat.page.locator("#title")).to_have_text("\N{FOX FACE}" * 60 + "…")


def test_a_new_chat_ends_the_search_that_would_hide_it(chat: Any) -> None:
    chat.canned("fine")
    chat.say("About the sky")
    chat.answered()
    chat.page.get_by_label("Search chats").fill("sky")
    expect(chat.page.locator("#list li")).to_have_text(["About the sky"])  # no excerpt that repeats the title
    chat.page.keyboard.press("Control+k")
    chat.say("Another question")
    chat.answered()
    expect(chat.page.locator("#list li")).to_have_text(["Another question", "About the sky"])
