"""The kit's verdict on faulty devices, as bitnet-hal's own tests have it."""

from __future__ import annotations

import importlib.util
from pathlib import Path

_path = Path(__file__).parents[3] / "hal" / "tests" / "testing" / "conftest.py"
_spec = importlib.util.spec_from_file_location("hal_testing_conftest", _path)
assert _spec is not None
assert _spec.loader is not None
_module = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(_module)
judge = _module.judge
