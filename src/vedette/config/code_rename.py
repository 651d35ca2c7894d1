"""Code of a copied agent given its own name: only where the text can mean nothing else.

A quoted word may be a label, a key of data or a folder, whatever it is called like. What names the
agent to ADK (`name=` of a call in agent.py) and the collection that it writes to (the first
argument of `RowWrite`, also by way of a constant of the module) is known by its place.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path


def rename_code(path: Path, code: str, names: dict[str, str], rows: dict[str, str]) -> str:
    """Return a copied agent's code with other names: `names` of agents, `rows` of collections.

    Each maps the old word to the new one. Code that cannot be parsed is returned as it is.
    """
    try:
        tree = ast.parse(code)
    except (SyntaxError, ValueError):
        return code  # said by the check that follows
    found = [
        (node, rows[_string_value(node)])
        for node in _collections(tree)
        if _string_value(node) in rows
    ]
    if path.name == "agent.py":
        found += [
            (node, names[_string_value(node)])
            for node in _agents(tree)
            if _string_value(node) in names
        ]
    lines = code.encode().splitlines(keepends=True)
    for node, word in sorted(found, key=lambda each: each[0].col_offset, reverse=True):
        if node.lineno == node.end_lineno:
            line = lines[node.lineno - 1]
            quote = line[node.col_offset : node.col_offset + 1]
            quote = quote if quote in (b"'", b'"') else b'"'
            replacement = quote + word.encode() + quote
            lines[node.lineno - 1] = (
                line[: node.col_offset] + replacement + line[node.end_col_offset :]
            )
    return b"".join(lines).decode()


def find_remaining(code: str, words: dict[str, str]) -> list[int]:
    """Return the lines of copied code whose strings still are an old word: somebody should look."""
    try:
        tree = ast.parse(code)
    except (SyntaxError, ValueError):
        return []
    return sorted(
        {
            node.lineno
            for node in ast.walk(tree)
            if isinstance(node, ast.Constant) and _string_value(node) in words
        }
    )


def _string_value(node: ast.Constant) -> str:
    return node.value if isinstance(node.value, str) else ""


def _agents(tree: ast.Module) -> Iterator[ast.Constant]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            for given in node.keywords:
                if given.arg == "name" and isinstance(given.value, ast.Constant):
                    yield given.value


def _collections(tree: ast.Module) -> Iterator[ast.Constant]:
    constants = set()
    for node in ast.walk(tree):
        first = _row_argument(node)
        if isinstance(first, ast.Constant):
            yield first
        elif isinstance(first, ast.Name):
            constants.add(first.id)
    for node in tree.body:
        if isinstance(node, ast.Assign | ast.AnnAssign) and isinstance(node.value, ast.Constant):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            if any(isinstance(each, ast.Name) and each.id in constants for each in targets):
                yield node.value


def _row_argument(node: ast.AST) -> ast.expr | None:
    if not isinstance(node, ast.Call):
        return None
    called = node.func.attr if isinstance(node.func, ast.Attribute) else None
    if isinstance(node.func, ast.Name):
        called = node.func.id
    if called != "RowWrite":
        return None
    named = [given.value for given in node.keywords if given.arg == "collection"]
    return next(iter([*node.args[:1], *named]), None)
