"""`bitnet kernels`, and the pages that are made from the catalogue and from sources."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from bitnet_hal.kernels.catalogue import CATALOGUE
from bitnet_hal.kernels.describe import describe_all

DOCS = Path(__file__).parents[3] / "docs"


def test_every_kernel_is_listed(bitnet) -> None:
    out = bitnet("kernels").out
    assert all(f"| {name} " in out for name in CATALOGUE)


def test_a_contract_is_complete(bitnet) -> None:
    out = bitnet("kernels", "matmul_dense").out
    spec = CATALOGUE["matmul_dense"]
    words = [spec.meaning, *(b.name for b in spec.bindings), *(p.meaning for p in spec.params), *spec.constants]
    assert [word for word in (*words, *spec.tuning, "ceil_div(outs, TILE_N)") if word not in out] == []


def test_all_contracts_begin_with_the_conventions(bitnet) -> None:
    assert bitnet("kernels", "all").out == describe_all()


def test_a_single_contract_names_the_command_for_the_conventions(bitnet) -> None:
    assert "`bitnet kernels all`" in bitnet("kernels", "attention").out


def test_an_unknown_kernel_is_a_usage_error(bitnet) -> None:
    result = bitnet("kernels", "softmax")
    assert result.code == 2
    assert "there is no kernel 'softmax'. Kernels: embed_rows" in result.err


def test_generated_pages_are_up_to_date() -> None:
    """`python docs/pages.py` makes them again."""
    done = subprocess.run([sys.executable, DOCS / "pages.py", "--check"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
