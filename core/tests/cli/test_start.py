"""Settings that a command changes in its own process."""

from __future__ import annotations

import gc
import sys

import pytest
from bitnet_core.cli.start import exclude_from_collection, turns_of_threads


def test_threads_take_turns_as_before_after_the_block() -> None:
    before = sys.getswitchinterval()
    with turns_of_threads(0.0005):
        assert sys.getswitchinterval() == pytest.approx(0.0005)
    assert sys.getswitchinterval() == before


def test_objects_of_a_model_are_not_collected_again() -> None:
    try:
        exclude_from_collection()
        assert gc.get_freeze_count() > 1000
        assert gc.get_count()[2] == 0
    finally:
        gc.unfreeze()
