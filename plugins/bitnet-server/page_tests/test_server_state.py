"""The page tells the truth about the server: loading, busy, draining, gone and back, keys."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from playwright.sync_api import Browser, Page, expect

PROPS = {"model": "tiny", "device": "cpu", "version": "1", "n_ctx": 1024, "total_slots": 2}


def ask_again(page: Page) -> None:
    """The page asks the server at once when it becomes visible or the network returns."""
    page.evaluate("dispatchEvent(new Event('online'))")


STATES: list[tuple[dict[str, Any] | None, str, str]] = [
    ({"json": {**PROPS, "health": "ready", "active_requests": 2}}, "ready", "tiny · cpu"),
    ({"json": {**PROPS, "health": "ready", "active_requests": 5}}, "busy", "busy, 3 waiting"),
    ({"json": {**PROPS, "state": "loading"}}, "loading", "tiny · loading"),
    ({"json": {"model": "tiny", "state": "unloaded"}}, "ready", "tiny · loads with the first message"),
    ({"json": {**PROPS, "health": "draining"}}, "draining", "shutting down"),
    ({"json": {**PROPS, "health": "device lost"}}, "failed", "device lost"),
    ({"status": 503, "json": {"error": {"message": "loading model"}}}, "loading", "loading the model"),
    ({"status": 503, "json": {"error": {"message": "it could not be loaded"}}}, "failed", "could not be loaded"),
    (None, "unreachable", "cannot be reached"),
]


def answer_props(page: Page, answer: dict[str, Any] | None) -> None:
    """Answer /props with this; None: as if there were no server."""
    page.unroute("**/props")
    page.route("**/props", lambda route: route.fulfill(**answer) if answer else route.abort())


def test_states(chat: Any) -> None:
    page, chip = chat.page, chat.page.locator("#model")
    for answer, state, text in STATES:
        answer_props(page, answer)
        ask_again(page)
        expect(chip).to_have_attribute("data-state", state)
        expect(chip).to_contain_text(text)
    page.unroute("**/props")
    ask_again(page)
    expect(chip).to_have_attribute("data-state", "ready")
    expect(chip).to_contain_text("stories")
    chat.wrong.clear()


def test_a_failed_request_asks_for_the_state(chat: Any) -> None:
    chat.page.route("**/props", lambda route: route.abort())
    chat.page.route("**/v1/chat/completions", lambda route: route.abort())
    chat.say("Are you there?")
    expect(chat.page.locator("#model[data-state=unreachable]")).to_be_visible()
    expect(chat.page.get_by_role("alert")).to_contain_text("The server cannot be reached.")
    chat.wrong.clear()


def test_keys_are_asked_for(browser: Browser, served: Any, tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    keys.write_text("open-sesame\n")
    with served("--api-key-file", str(keys)) as url:
        page = browser.new_page()
        page.goto(url)
        page.get_by_role("textbox", name="API key").fill("wrong", timeout=20_000)
        expect(page.locator("#refused")).to_be_hidden()
        page.get_by_role("button", name="Use it").click()
        expect(page.locator("#refused")).to_be_visible()
        page.keyboard.press("Escape")
        page.get_by_role("button", name="Enter a key").click()
        page.get_by_role("textbox", name="API key").fill("open-sesame")
        page.get_by_role("button", name="Use it").click()
        expect(page.locator("#model.up")).to_be_visible(timeout=20_000)
        page.close()
