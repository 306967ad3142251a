"""The chat page in headless Chromium: what people do with it, and what a hostile model cannot do."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from importlib.resources import files
from typing import Any

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, Page, expect, sync_playwright

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
VENDORED = {
    "marked.js": "c622dc6824a1c92c2d10ea9ede2fc872e46128afcc34b298e6ddee6f387ace8e",  # marked 18.2.1, MIT
    "purify.js": "f1f1ba66e2951e5ca14bc4e71e24cc503d35d49c68f9bcfa4fd97970cb71c76b",  # DOMPurify 3.4.18, Apache-2.0
}


@pytest.fixture(scope="session")
def url() -> Iterator[str]:
    """A server with the shipped model."""
    program = "from bitnet_core.cli.app import main; main()"
    command = [sys.executable, "-c", program, "serve", "--port", "0", "-d", "cpu"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        try:
            yield process.stderr.readline().split()[-1]
        finally:
            process.terminate()


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    with sync_playwright() as playwright:
        launched = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield launched
        launched.close()


@pytest.fixture
def wrong() -> list[str]:
    """Errors of the page, and what it asked of other servers."""
    return []


@pytest.fixture
def page(browser: Browser, url: str, wrong: list[str]) -> Iterator[Page]:
    """The page of a new visitor, in which nothing may go wrong."""
    context = browser.new_context()
    opened = context.new_page()
    own = (url, "data:", "blob:")
    opened.on("console", lambda message: wrong.append(message.text) if message.type == "error" else None)
    opened.on("pageerror", lambda error: wrong.append(str(error)))
    opened.on("request", lambda asked: None if asked.url.startswith(own) else wrong.append(asked.url))
    opened.goto(url)
    expect(opened.locator("#model.up")).to_be_visible(timeout=20_000)
    wrong[:] = [text for text in wrong if "503" not in text]  # the browser notes each answer "loading"
    opened.evaluate("localStorage.setItem('bitnet.settings', JSON.stringify({max_tokens: 24, temperature: 0}))")
    opened.reload()
    expect(opened.locator("#model.up")).to_be_visible()
    yield opened
    context.close()
    assert wrong == []


def say(page: Page, text: str) -> None:
    page.get_by_label("Message", exact=True).fill(text)
    page.keyboard.press("Enter")


def answered(page: Page, count: int = 1) -> Any:
    """The last of `count` answers, complete."""
    expect(page.locator(".message.assistant")).to_have_count(count, timeout=30_000)
    expect(page.get_by_role("button", name="Send", exact=True)).to_be_visible(timeout=30_000)
    return page.locator(".message.assistant .body").last


def canned(page: Page, text: str) -> None:
    """Every answer is this text, in small pieces."""
    parts = [text[at : at + 7] for at in range(0, len(text), 7)]
    chunks: list[Any] = [{"choices": [{"delta": {"content": part}, "finish_reason": None}]} for part in parts]
    chunks.append({"choices": [{"delta": {}, "finish_reason": "stop"}]})
    body = "".join(f"data: {json.dumps(chunk)}\n\n" for chunk in chunks) + "data: [DONE]\n\n"
    page.route("**/v1/chat/completions", lambda route: route.fulfill(content_type="text/event-stream", body=body))


def test_a_conversation(page: Page) -> None:
    say(page, "Tell me a story.")
    first = answered(page).inner_text()
    assert len(first) > 10
    expect(page.locator(".tools span").last).to_contain_text("tokens/s")
    expect(page.locator("#figures")).to_contain_text("of 1,024 tokens")
    say(page, "And then?")
    answered(page, 2)
    page.reload()
    expect(page.locator(".message")).to_have_count(4)
    expect(page.locator("#list .here")).to_contain_text("Tell me a story.")
    page.keyboard.press("Control+k")
    expect(page.locator("#empty")).to_be_visible()
    page.locator("#list .open", has_text="Tell me").click()
    expect(page.locator(".message.assistant .body").first).to_have_text(first)


def test_regenerate_edit_and_continue(page: Page) -> None:
    say(page, "Tell me a story.")
    first = answered(page).inner_text()
    page.get_by_label("Continue this answer").click()
    expect(page.locator(".message.assistant .tools")).to_be_visible(timeout=30_000)
    assert answered(page).inner_text().startswith(first[:10])
    assert len(page.locator(".message.assistant .body").inner_text()) > len(first)
    page.get_by_label("Write another answer").click()
    expect(page.locator(".message.assistant .tools")).to_be_visible(timeout=30_000)
    assert answered(page).inner_text() == first  # greedy
    page.get_by_label("Edit and send again").click()
    page.locator(".edit").fill("Tell me about a cat.")
    page.locator(".message .main").click()
    answered(page)
    expect(page.locator(".message.user .body")).to_have_text("Tell me about a cat.")


def test_stop_frees_the_place(page: Page, url: str) -> None:
    page.evaluate("localStorage.setItem('bitnet.settings', JSON.stringify({max_tokens: 900, temperature: 1.2}))")
    page.reload()
    say(page, "Tell me a long story.")
    expect(page.locator(".message.assistant .body")).not_to_be_empty(timeout=20_000)
    page.keyboard.press("Escape")
    answered(page)
    end = time.monotonic() + 10
    while b"bitnet:num_requests_running{" in (text := urllib.request.urlopen(url + "/metrics").read()):
        line = next(line for line in text.splitlines() if line.startswith(b"bitnet:num_requests_running{"))
        if line.endswith(b" 0.0"):
            break
        assert time.monotonic() < end
    expect(page.locator(".message.assistant .body")).not_to_be_empty()


def test_hostile_markdown_is_inert(page: Page, wrong: list[str]) -> None:
    page.evaluate("window.hit = 0")
    canned(
        page,
        "# T\n\n<script>window.hit=1</script><img src=x onerror='window.hit=2'>"
        "<a href='javascript:window.hit=3'>l</a> <img src='https://evil.example/?text'>\n\n"
        "[m](javascript:window.hit=4) <iframe src='https://evil.example'></iframe><svg onload='window.hit=5'></svg>\n\n"
        "<style>body{display:none}</style><form action='https://evil.example'><input name=q></form>\n\n"
        "```html\n<b onclick='window.hit=6'>x</b>\n```\n\n"
        "<div style='position:fixed' id=log onmouseover='window.hit=7'>y</div>",
    )
    say(page, "<img src=x onerror='window.hit=8'>")
    body = answered(page)
    for link in body.locator("a").all():
        assert not (link.get_attribute("href") or "").startswith("javascript")
    assert body.locator("script, iframe, style, form, input, [style], [onclick], [onerror], [id]").count() == 0
    assert page.evaluate("window.hit") == 0
    expect(body.locator("pre")).to_contain_text("onclick")
    expect(page.locator(".message.user .body")).to_have_text("<img src=x onerror='window.hit=8'>")
    blocked = ("Content Security Policy", "404", "https://evil.example/?text")  # what the browser refused, and /x
    assert all(any(text in line for text in blocked) for line in wrong), wrong
    wrong.clear()


def test_markdown_is_shown_and_copied(page: Page) -> None:
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    canned(
        page, "Some **bold** words:\n\n- one\n- two\n\n```python\nprint(1)\n```\n\n| a | b |\n|---|---|\n| 1 | 2 |\n"
    )
    say(page, "Show me")
    body = answered(page)
    for part in ("strong", "li", "pre", "td"):
        assert body.locator(part).count() > 0
    body.get_by_role("button", name="Copy").click()
    assert page.evaluate("navigator.clipboard.readText()").strip() == "print(1)"


def test_thoughts_are_folded_away(page: Page) -> None:
    deltas = [{"reasoning_content": "Hmm <b>"}, {"content": "Yes."}]
    chunks = [{"choices": [{"delta": delta, "finish_reason": None}]} for delta in deltas]
    body = "".join(f"data: {json.dumps(chunk)}\n\n" for chunk in chunks) + "data: [DONE]\n\n"
    page.route("**/v1/chat/completions", lambda route: route.fulfill(content_type="text/event-stream", body=body))
    say(page, "Is it?")
    expect(answered(page)).to_have_text("Yes.")
    page.get_by_text("Thoughts").click()
    expect(page.locator("details")).to_contain_text("Hmm <b>")


def test_errors_can_be_read_and_tried_again(page: Page) -> None:
    error = {"error": {"message": "the queue is full", "type": "rate_limit_error", "param": None, "code": "queue_full"}}
    body = f"data: {json.dumps(error)}\n\n"
    page.route("**/v1/chat/completions", lambda route: route.fulfill(content_type="text/event-stream", body=body))
    say(page, "Hello")
    expect(page.get_by_role("alert")).to_contain_text("the queue is full")
    page.unroute("**/v1/chat/completions")
    page.get_by_role("button", name="Try again").click()
    assert answered(page).inner_text()


def test_conversations_are_renamed_exported_imported_and_deleted(page: Page) -> None:
    canned(page, "fine")
    say(page, "How are you?")
    answered(page)
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


def test_settings_go_into_the_request(page: Page) -> None:
    sent: list[Any] = []
    canned(page, "yes")
    page.on("request", lambda request: sent.append(request.post_data_json) if request.method == "POST" else None)
    page.get_by_role("button", name="Settings").click()
    page.get_by_label("System prompt").fill("Be brief.")
    page.get_by_label("Top k").fill("7")
    page.get_by_role("button", name="Done").click()
    say(page, "Go")
    answered(page)
    assert sent[0]["messages"][0] == {"role": "system", "content": "Be brief."}
    assert (sent[0]["top_k"], sent[0]["max_tokens"], sent[0]["temperature"]) == (7, 24, 0)


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1280, 390])
def test_it_can_be_used_by_everybody(browser: Browser, url: str, scheme: Any, width: int) -> None:
    """axe finds nothing, nothing is wider than the screen, and pictures are kept where PAGE_PICTURES says."""
    context = browser.new_context(color_scheme=scheme, viewport={"width": width, "height": 800})
    page = context.new_page()
    page.goto(url)
    expect(page.locator("#model.up")).to_be_visible(timeout=20_000)
    for step in ("empty", "talk", "settings", "list"):
        if step == "talk":
            code = "print('a long line of code that goes on ' * 9)"
            canned(page, f"Some **words** with `code`:\n\n```python\n{code}\n```\n\n1. x\n2. y")
            say(page, "Show me some code, please")
            answered(page)
        elif step == "settings":
            page.get_by_role("button", name="Settings").click()
        elif step == "list" and width < 760:
            page.keyboard.press("Escape")
            page.locator("#menu").click()
            page.wait_for_timeout(300)
        found = Axe().run(page).response["violations"]
        assert [(v["id"], [n["target"] for n in v["nodes"]]) for v in found] == []
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
        if folder := os.environ.get("PAGE_PICTURES"):
            page.screenshot(path=f"{folder}/{scheme}-{width}-{step}.png")
    context.close()


def test_keys_are_asked_for(browser: Browser, tmp_path: Any) -> None:
    keys = tmp_path / "keys"
    keys.write_text("open-sesame\n")
    program = "from bitnet_core.cli.app import main; main()"
    command = [sys.executable, "-c", program, "serve", "--port", "0", "-d", "cpu", "--api-key-file", str(keys)]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        page = browser.new_page()
        page.goto(process.stderr.readline().split()[-1])
        page.get_by_role("textbox", name="API key").fill("open-sesame", timeout=20_000)
        page.get_by_role("button", name="Use it").click()
        expect(page.locator("#model.up")).to_be_visible(timeout=20_000)
        page.close()
        process.terminate()


def test_vendored_libraries_are_what_they_were() -> None:
    for name, digest in VENDORED.items():
        content = (files("bitnet_server") / "static" / name).read_bytes()
        assert hashlib.sha256(content).hexdigest() == digest
        assert (files("bitnet_server") / "static" / name.replace(".js", ".LICENSE")).read_bytes()
