"""The emulated Metal replaces a missing one in the tests."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from emulator.metal import State, install
from emulator.tables import Tables, download, read


def pytest_configure(config: pytest.Config) -> None:
    """Before the kit looks for devices. On a Mac the tests run on its own Metal."""
    config.stash[STATE] = None if sys.platform == "darwin" else stand_in()


STATE = pytest.StashKey[State | None]()
WITHOUT = "the stand-in needs clang++-19 (apt install clang-19), an x86-64 machine, and pyobjc's tables from PyPI"


def stand_in() -> State | None:
    """Return the emulated Metal, None if it cannot be built: then there is no device, as on any machine without
    Metal."""
    if shutil.which("clang++-19") is None or platform.machine() != "x86_64":
        return None
    folder = Path(tempfile.gettempdir()) / "bitnet-metal-tables"
    folder.mkdir(exist_ok=True)
    try:
        tables = read(download(folder))
    except subprocess.SubprocessError:
        if os.environ.get("CI"):
            raise
        return None
    return install(tables)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out texts of whole models, which take the emulator minutes, unless `-k` selects tests."""
    if config.stash[STATE] is not None and not config.option.keyword:
        names = ("shipped_model", "beside_others", "depend_on_other_requests")
        left_out = [item for item in items if any(name in item.name for name in names)]
        items[:] = [item for item in items if item not in left_out]
        config.hook.pytest_deselected(items=left_out)


@pytest.fixture(scope="session")
def tables(pytestconfig: pytest.Config) -> Tables:
    """Return the tables of the real framework."""
    state = pytestconfig.stash[STATE]
    if state is None:
        pytest.skip(WITHOUT)
    return state.tables


@pytest.fixture
def state(pytestconfig: pytest.Config) -> Iterator[State]:
    """The stand-in's, put back afterwards."""
    made = pytestconfig.stash[STATE]
    if made is None:
        pytest.skip(WITHOUT)
    before = {name: getattr(made, name) for name in ("working_set", "family", "unified", "no_indirect", "stuck")}
    yield made
    vars(made).update(before)
    made.fails.clear()
