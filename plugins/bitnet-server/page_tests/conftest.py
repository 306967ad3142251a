"""The chat page in headless Chromium: a server with the shipped model, and a visitor of its page."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from playwright.sync_api import Browser, BrowserContext, Page, Route, expect, sync_playwright

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
SETTINGS = {"max_tokens": 24, "temperature": 0}


class ChatPage:
    """The page as one visitor uses it. wrong: errors of the page, and requests that leave the server."""

    def __init__(self, page: Page, url: str, wrong: list[str]) -> None:
        self.page, self.url, self.wrong = page, url, wrong
        self.sent: list[Any] = []  # bodies of the requests for answers

    @property
    def body(self) -> Any:
        """The text of the last answer."""
        return self.page.locator(".message.assistant .body").last

    def say(self, text: str) -> None:
        """Send a message."""
        self.page.get_by_label("Message", exact=True).fill(text)
        self.page.keyboard.press("Enter")

    def answered(self, count: int = 1) -> Any:
        """Wait until `count` answers are shown and complete; return the text of the last one."""
        expect(self.page.locator(".message.assistant")).to_have_count(count, timeout=30_000)
        expect(self.page.get_by_role("button", name="Send", exact=True)).to_be_visible(timeout=30_000)
        return self.body

    def chunks(self, *chunks: dict[str, Any], end: str = "data: [DONE]\n\n") -> None:
        """Answer every request with these documents of a stream."""
        body = "".join(f"data: {json.dumps(chunk)}\n\n" for chunk in chunks) + end

        def fulfill(route: Route) -> None:
            self.sent.append(route.request.post_data_json)
            route.fulfill(content_type="text/event-stream", body=body)

        self.page.unroute("**/v1/chat/completions")
        self.page.route("**/v1/chat/completions", fulfill)

    def canned(self, text: str, **last: Any) -> None:
        """Answer every request with this text, in small pieces. last: fields of the last document."""
        parts = [text[at : at + 7] for at in range(0, len(text), 7)]
        self.chunks(*map(delta, parts), {"choices": [{"delta": {}, "finish_reason": "stop"}]} | last)

    def refused(self, status: int, message: str, code: str | None = None) -> None:
        """Refuse every request."""
        document = {"error": {"message": message, "type": "invalid_request_error", "param": None, "code": code}}

        def fulfill(route: Route) -> None:
            self.sent.append(route.request.post_data_json)
            route.fulfill(status=status, json=document)

        self.page.unroute("**/v1/chat/completions")
        self.page.route("**/v1/chat/completions", fulfill)

    def attach(self, name: str, content: bytes) -> None:
        """Pick a file."""
        self.page.locator("#files").set_input_files({"name": name, "mimeType": "text/plain", "buffer": content})


def delta(content: str) -> dict[str, Any]:
    """Return a document of a stream with a piece of text."""
    return {"choices": [{"delta": {"content": content}, "finish_reason": None}]}


@contextmanager
def serving(*options: str) -> Iterator[str]:
    """The address of a server with the shipped model."""
    program = "from bitnet_core.cli.app import main; main()"
    command = [sys.executable, "-c", program, "serve", "--port", "0", "-d", "cpu", *options]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        try:
            yield process.stderr.readline().split()[-1]
        finally:
            process.terminate()


@pytest.fixture(scope="session")
def url() -> Iterator[str]:
    """The address of a server."""
    with serving() as address:
        yield address


@pytest.fixture
def served() -> Any:
    """Start a server of one's own: a context manager, given its options."""
    return serving


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    with sync_playwright() as playwright:
        launched = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield launched
        launched.close()


@pytest.fixture
def wrong() -> list[str]:
    """Errors of the pages of a test, and what they asked of other servers."""
    return []


@pytest.fixture
def context(browser: Browser, url: str, wrong: list[str]) -> Iterator[BrowserContext]:
    """A browser without history, in which nothing may go wrong."""
    opened = browser.new_context()
    own = (url, "data:", "blob:")
    opened.on("console", lambda message: wrong.append(message.text) if message.type == "error" else None)
    opened.on("weberror", lambda error: wrong.append(str(error.error)))
    opened.on("request", lambda asked: None if asked.url.startswith(own) else wrong.append(asked.url))
    stored = f"localStorage['bitnet.settings'] ??= {json.dumps(json.dumps(SETTINGS))}"
    opened.add_init_script(f"if (location.protocol === 'http:') {stored}")
    yield opened
    opened.close()
    assert wrong == []


@pytest.fixture
def visit(context: BrowserContext, url: str, wrong: list[str]) -> Any:
    """Open the page in a new tab."""

    def opened() -> ChatPage:
        page = context.new_page()
        page.goto(url)
        expect(page.locator("#model.up")).to_be_visible(timeout=20_000)
        wrong[:] = [text for text in wrong if "503" not in text]  # the browser notes each answer "loading"
        return ChatPage(page, url, wrong)

    return opened


@pytest.fixture
def chat(visit: Any) -> ChatPage:
    """The page of a new visitor."""
    found: ChatPage = visit()
    return found
