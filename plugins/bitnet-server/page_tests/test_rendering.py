"""Rendering of a model's Markdown, also of a hostile model's."""

from __future__ import annotations

from typing import Any

from playwright.sync_api import expect


def test_hostile_markdown_is_inert(chat: Any) -> None:
    page = chat.page
    page.evaluate("window.hit = 0")
    chat.canned(
        "# T\n\n<script>window.hit=1</script><img src=x onerror='window.hit=2'>"
        "<a href='javascript:window.hit=3'>l</a> <img src='https://evil.example/?text'> ![p](https://evil.example/q)\n\n"
        "[m](javascript:window.hit=4) <iframe src='https://evil.example'></iframe><svg onload='window.hit=5'></svg>\n\n"
        "<style>body{display:none}</style><form action='https://evil.example'><input name=q></form>\n\n"
        "```html\n<b onclick='window.hit=6'>x</b>\n```\n\n"
        "<div style='position:fixed' id=log class='app quiet' onmouseover='window.hit=7'>y</div>\n\n"
        r"$\href{javascript:window.hit=9}{x} \text{<img src=x onerror=window.hit=10>} \includegraphics{https://evil.example/i}$"
        "\n\n"
        r"$\def\a{\a\a}\a$ and $\style{position:fixed}{z} \htmlId{log}{w} \class{quiet}{v}$"
    )
    chat.say("<img src=x onerror='window.hit=8'>")
    body = chat.answered()
    expect(body.locator(".formula").first).to_be_visible()
    for link in body.locator("a").all():
        assert not (link.get_attribute("href") or "").startswith("javascript")
    assert (
        body.locator("script, iframe, style, form, input, img, [onclick], [onerror], [id], [href^=java]").count() == 0
    )
    assert body.locator("[style*=fixed], .quiet, .app").count() == 0
    assert page.evaluate("window.hit") == 0
    expect(body.locator("pre")).to_contain_text("onclick")
    expect(page.locator(".message.user .body")).to_have_text("<img src=x onerror='window.hit=8'>")
    assert all(
        "Content Security Policy" in line and "evil" not in line for line in chat.wrong
    )  # the sanitizer's parser
    chat.wrong.clear()


def test_markdown_is_shown_and_copied(chat: Any) -> None:
    page = chat.page
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    chat.canned("Some **bold** words:\nnext line\n\n- one\n- [x] two\n- [ ] three\n\n```python\nprint('a')\n```\n")
    chat.say("Show me")
    body = chat.answered()
    for part in ("strong", "li", "pre", "br"):
        assert body.locator(part).count() > 0
    expect(body.get_by_role("img", name="done")).to_have_count(1)
    expect(body.get_by_role("img", name="to do")).to_have_count(1)
    expect(body.locator(".hljs-built_in")).to_have_text("print")
    expect(body.locator(".hljs-string")).to_have_text("'a'")
    body.get_by_role("button", name="Copy").click()
    assert page.evaluate("navigator.clipboard.readText()").strip() == "print('a')"


def test_formulas_are_typeset(chat: Any) -> None:
    chat.canned(
        r"From $5 to $6, and \(\frac{a}{b}\), $E=mc^2$, `$x$` and $$y^2$$ inside." + "\n\n"
        r"\[" + "\nA = \\begin{pmatrix}1 & 2\\\\3 & 4\\end{pmatrix}\n" + r"\]" + "\n\n"
        "$$\n\\sum_{i=1}^n i\n$$\n\nNo \\(\\unknown{x}\\) command."
    )
    chat.say("Show me formulas")
    body = chat.answered()
    expect(body.locator("math")).to_have_count(5)
    expect(body.locator("mfrac")).to_have_count(1)
    expect(body.locator("mtable mtd")).to_have_count(4)
    expect(body.locator(".formula.wide")).to_have_count(3)
    expect(body).to_contain_text("From $5 to $6, and")
    expect(body.locator("code")).to_have_text(["$x$", r"\unknown{x}"])


def test_tables_keep_words_whole(chat: Any) -> None:
    page = chat.page
    page.set_viewport_size({"width": 390, "height": 800})
    cells = " | ".join(["internationalization"] * 6)
    chat.canned(f"| Age | {cells} |\n|{'---|' * 7}\n| 100 | {cells} |\n")
    chat.say("Show me a table")
    table = chat.answered().locator(".table")
    heights = "one => [...one.querySelectorAll('th,td')].map((cell) => cell.offsetHeight)"
    assert max(table.evaluate(heights)) < 50  # one line each
    assert table.evaluate("one => one.scrollWidth > one.clientWidth")
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")


def test_thoughts_are_folded_away(chat: Any) -> None:
    deltas = [{"reasoning_content": "Hmm <b>"}, {"content": "Yes."}]
    chat.chunks(*({"choices": [{"delta": one, "finish_reason": None}]} for one in deltas))
    chat.say("Is it?")
    expect(chat.answered()).to_have_text("Yes.")
    expect(chat.page.locator(".thoughts div")).to_be_hidden()
    chat.page.get_by_text("Thought", exact=True).click()
    expect(chat.page.locator(".thoughts div")).to_have_text("Hmm <b>")


def test_a_long_word_stays_in_its_cell(chat: Any) -> None:
    word = "averyvery" * 12
    chat.canned(f"| Name | Word | Other |\n|---|---|---|\n| a | {word} | else |\n| b | two words | more |\n")
    chat.say("A table")
    cell = chat.answered().locator("td", has_text=word)
    assert cell.evaluate("(cell) => cell.scrollWidth <= cell.clientWidth + 1")
