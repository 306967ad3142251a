"""Rules about whole models: the part of the conformance kit (`bitnet_hal.testing`) that needs the engine."""

from __future__ import annotations

import pytest

pytest.register_assert_rewrite("bitnet_core.testing.model")
