"""Render a kernel's contract as text that is readable in a terminal and valid Markdown."""

from __future__ import annotations

import ast
import inspect
import textwrap

from bitnet_hal.kernels import conventions
from bitnet_hal.kernels.catalogue import CATALOGUE
from bitnet_hal.kernels.spec import KernelSpec


def describe(spec: KernelSpec) -> str:
    """Return the contract of one kernel: meaning, bindings, parameters, constants and grid."""
    bindings = [(str(i), b.name, b.dtype, b.access, b.shape) for i, b in enumerate(spec.bindings)]
    constants = [f"`{name}` = {', '.join(map(str, values))}" for name, values in spec.constants.items()]
    constants += [f"`{name}` (tuning)" for name in spec.tuning]
    parts = [
        f"## {spec.name}",
        spec.meaning + ("" if spec.base else " **Optional.**"),
        table(("binding", "name", "type", "access", "shape"), *bindings),
        table(("parameter", "type", "meaning"), *((p.name, p.kind, p.meaning) for p in spec.params)),
        f"Constants: {'; '.join(constants)}." if constants else "No constants.",
        f"Grid, in workgroups: `{grid_formula(spec)}`",
    ]
    return "\n\n".join(parts)


def describe_all() -> str:
    """Return the conventions, then the contract of each kernel."""
    names = table(("name", "stands for"), *conventions.NAMES.items())
    contracts = [describe(spec) for spec in CATALOGUE.values()]
    return "\n\n".join(["## Conventions", names, conventions.TEXT, *contracts]) + "\n"


def table(*rows: tuple[str, ...]) -> str:
    """Return a Markdown table with aligned columns; the first row is its header."""
    cells = [[cell.replace("|", "\\|") for cell in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    cells.insert(1, ["-" * width for width in widths])
    return "\n".join(
        "| " + " | ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) + " |" for row in cells
    )


def grid_formula(spec: KernelSpec) -> str:
    """Return the source of the grid function, with parameters and tuning constants by their bare names."""
    function = ast.parse(textwrap.dedent(inspect.getsource(spec.grid))).body[0]
    assert isinstance(function, ast.FunctionDef)
    lines = [ast.unparse(_BareNames().visit(line)) for line in function.body if not _is_docstring(line)]
    return "; ".join(lines).replace("return ", "").replace("\n", " ")


class _BareNames(ast.NodeTransformer):
    """Rewrites `int(params["rows"])` and `tuning["TILE_N"]` as `rows` and `TILE_N`."""

    def visit_Call(self, node: ast.Call) -> ast.AST:
        self.generic_visit(node)
        return node.args[0] if isinstance(node.func, ast.Name) and node.func.id == "int" else node

    def visit_Subscript(self, node: ast.Subscript) -> ast.AST:
        self.generic_visit(node)
        return ast.Name(str(node.slice.value)) if isinstance(node.slice, ast.Constant) else node


def _is_docstring(line: ast.stmt) -> bool:
    return isinstance(line, ast.Expr) and isinstance(line.value, ast.Constant)
