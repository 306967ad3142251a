"""The files of the chat page: libraries are what was published, and everything that a file names is there."""

from __future__ import annotations

import hashlib
import re
import tomllib
from importlib.resources import files
from pathlib import Path

import httpx
from bitnet_server.page import contents

STATIC = Path(str(files("bitnet_server"))) / "static"
VENDOR = STATIC / "vendor"
LIBRARIES = tomllib.loads((VENDOR / "libraries.toml").read_text())["library"]


def test_libraries_are_what_was_published() -> None:
    listed = {path: digest for library in LIBRARIES for path, digest in library["files"].items()}
    present = {path.relative_to(VENDOR).as_posix(): path.read_bytes() for path in VENDOR.rglob("*.js")}
    assert {path: hashlib.sha256(content).hexdigest() for path, content in present.items()} == listed


def test_libraries_have_their_licences() -> None:
    readme = (Path(__file__).parents[1] / "README.md").read_text()
    for library in LIBRARIES:
        assert len((VENDOR / library["licence-file"]).read_text()) > 500
        assert library["name"] in readme


def test_files_name_only_files_that_are_there() -> None:
    named = set()
    for path in [*STATIC.glob("*.js"), STATIC / "index.html"]:
        text = path.read_text()
        named |= set(re.findall(r'from "\./([\w/.]+)"', text)) | set(re.findall(r'"/static/([\w/.]+)"', text))
    assert {"app.js", "vendor/temml.js", "message.css"} <= named
    assert named <= contents().keys()
    names = re.search(r"const NAMES = {(.*?)};", (STATIC / "code.js").read_text(), re.S)
    known = set(re.findall(r'(\w+): "', names[1])) if names else set()
    assert known == {path.stem for path in (VENDOR / "languages").iterdir()}


def test_a_file_that_has_not_changed_is_not_sent_again(client: httpx.Client) -> None:
    first = client.get("/static/vendor/purify.js")
    assert len(first.content) > 50_000
    again = client.get("/static/vendor/purify.js", headers={"if-none-match": first.headers["etag"]})
    assert (again.status_code, again.content) == (304, b"")
    assert again.headers["content-security-policy"] == first.headers["content-security-policy"]
    other = client.get("/static/app.js", headers={"if-none-match": first.headers["etag"]})
    assert (other.status_code, other.content[:2]) == (200, b"//")


def test_every_module_is_small_and_says_its_purpose() -> None:
    for path in STATIC.glob("*.js"):
        lines = path.read_text().splitlines()
        assert lines[0].startswith("// "), path.name
        assert len(lines) < 300, path.name
        assert max(map(len, lines)) <= 140, path.name
