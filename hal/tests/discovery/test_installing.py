"""Install hints of errors: folders of a checkout, or names if bitnet-hal came from an index."""

from __future__ import annotations

import json
import re
from pathlib import Path
from types import SimpleNamespace

import importlib_metadata
import pytest
from bitnet_hal.discovery import known
from bitnet_hal.discovery.known import KNOWN, PACKAGES, from_index, install_command, install_hint, upgrade_hint

ROOT = Path(__file__).parents[3]
EDITABLE = {"url": "file:///home/user/bitnet/core", "dir_info": {"editable": True}}
WHEEL = {"url": "file:///tmp/bitnet_core-0.2.0-py3-none-any.whl", "archive_info": {}}
GIT = {"url": "https://example.org/bitnet.git", "vcs_info": {"vcs": "git", "commit_id": "0" * 40}}


@pytest.fixture
def origin(monkeypatch: pytest.MonkeyPatch):
    """Return a function that sets direct_url.json of the installed package, None for an index."""

    def set_origin(document: dict[str, object] | None) -> None:
        text = None if document is None else json.dumps(document)
        there = SimpleNamespace(read_text={"direct_url.json": text}.get)
        monkeypatch.setattr(known.importlib_metadata, "distribution", lambda _: there)
        from_index.cache_clear()

    yield set_origin
    from_index.cache_clear()


@pytest.mark.parametrize("document", [EDITABLE, WHEEL, GIT])
def test_from_a_checkout_its_folders_are_installed(origin, document: dict[str, object]) -> None:
    origin(document)
    assert install_command("bitnet-cpu") == "pip install ./plugins/bitnet-cpu"
    assert install_command("bitnet-opencl[pocl]") == 'pip install "./plugins/bitnet-opencl[pocl]"'
    assert install_command("bitnet-core[hub]") == 'pip install ./hal "./core[hub]"'
    assert install_hint("cuda", "vulkan") == "pip install ./plugins/bitnet-cuda or ./plugins/bitnet-vulkan"
    upgrade = "in a current checkout: pip install ./hal ./core ./plugins/bitnet-cuda"
    assert upgrade_hint("bitnet-core", "bitnet-cuda") == f"Upgrade bitnet-core and bitnet-cuda; {upgrade}"
    assert upgrade_hint("bitnet-acme") == "Upgrade bitnet-acme"


def test_from_an_index_its_names_are_installed(origin) -> None:
    origin(None)
    assert install_command("bitnet-cpu") == "pip install bitnet-cpu"
    assert install_command("bitnet-opencl[pocl]") == 'pip install "bitnet-opencl[pocl]"'
    assert upgrade_hint("bitnet-core", "bitnet-acme").endswith(": pip install -U bitnet-core bitnet-acme")


def test_without_metadata_no_name_is_believed(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(_: str) -> None:
        raise importlib_metadata.PackageNotFoundError

    monkeypatch.setattr(known.importlib_metadata, "distribution", missing)
    from_index.cache_clear()
    assert not from_index()
    from_index.cache_clear()


def test_each_package_is_a_folder_of_the_checkout() -> None:
    for package in PACKAGES:
        folder = ROOT / {"bitnet-hal": "hal", "bitnet-core": "core"}.get(package, f"plugins/{package}")
        assert f'name = "{package}"' in (folder / "pyproject.toml").read_text(encoding="utf-8")
    assert {backend.package for backend in KNOWN.values()} <= set(PACKAGES)


def sources() -> list[Path]:
    folders = [
        ROOT / "core" / "src",
        ROOT / "hal" / "src",
        *ROOT.glob("plugins/*/src"),
        *ROOT.glob("integrations/*/src"),
    ]
    return [file for folder in folders for kind in ("*.py", "*.toml", "*.md") for file in folder.rglob(kind)]


def test_no_text_of_a_program_names_a_package_to_install_by_itself() -> None:
    command = re.compile(r"(?:pip|llm|uv pip|pipx) install [^`\n]*?(?<![/\w])(?:llm-)?bitnet[-_]\w+")
    found = [(file.name, match[0]) for file in sources() for match in command.finditer(file.read_text("utf-8"))]
    assert found == []


def test_whoever_reports_is_told_with_what() -> None:
    report = re.compile(r"[Rr]eport (?:it|this)[^\n]*")
    lines = [(file, match[0]) for file in sources() for match in report.finditer(file.read_text("utf-8"))]
    assert len(lines) > 10
    silent = [(file.name, line) for file, line in lines if "doctor --json" not in line and "REPORT" not in line]
    assert [(name, line) for name, line in silent if name != "known.py"] == []
