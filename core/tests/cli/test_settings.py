"""The configuration file stands below the environment, which stands below arguments."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest
from bitnet_hal.discovery.request import resolve_request
from bitnet_hal.environment import strict_mode
from bitnet_hal.errors import UsageError
from bitnet_hal.settings import config_path, setting


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "config.toml"
    monkeypatch.setenv("BITNET_CONFIG", str(path))
    return path


def test_precedence(config: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config.write_text('device = "vulkan:1"\nstrict = true\n')
    assert str(resolve_request(None)) == "vulkan:1"
    assert strict_mode()
    monkeypatch.setenv("BITNET_DEVICE", "cuda")
    monkeypatch.setenv("BITNET_STRICT_MODE", "0")
    assert str(resolve_request(None)) == "cuda"
    assert not strict_mode()
    assert str(resolve_request("numpy")) == "numpy"


def test_levels_of_logs(config: Path, bitnet) -> None:
    config.write_text('log = "bitnet_core=info"\ndevice = "numpy"\n')
    package = logging.getLogger("bitnet_core")
    try:
        assert bitnet("run", "a", "-n", 1).code == 0
        assert package.level == logging.INFO
    finally:
        package.setLevel(logging.NOTSET)


def test_without_a_file_nothing_is_set(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("platformdirs.user_config_path", lambda *_, **__: tmp_path / "none")
    assert config_path() == tmp_path / "none" / "config.toml"
    assert setting("device") is None


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("device = 5", "not a valid setting"),
        ("devise = 'cuda'", "not a valid setting"),
        ("strict = 'yes'", "not a valid setting"),
        ("device = ", "not TOML"),
        ("a = " + "[" * 5000, "TOML"),
        ("# " + "x" * (1 << 16), "longer"),
        ("device = '/'", "is not a device"),
    ],
)
def test_what_makes_no_sense(config: Path, content: str, message: str, bitnet) -> None:
    config.write_text(content)
    result = bitnet("run", "a", "-n", 1)
    assert result.code == 2
    assert message in result.err


def test_a_file_that_was_named_must_be_there(config: Path) -> None:
    with pytest.raises(UsageError, match="there is no file"):
        setting("device")
    config.mkdir()
    with pytest.raises(UsageError, match="cannot be read"):
        setting("device")
