"""Runs a notebook in percent format as a kernel would, a cell after the other, and prints what each shows as JSON."""

from __future__ import annotations

import ast
import contextlib
import io
import json
import sys
from pathlib import Path
from typing import Any


def main() -> int:
    (path,) = sys.argv[1:]
    scope: dict[str, Any] = {"__name__": "__main__"}
    shown = [outcome(code, scope) for code in cells(Path(path).read_text())]
    modules = sorted({name.partition(".")[0] for name in sys.modules})
    sys.stdout.write(json.dumps({"cells": shown, "modules": modules}))
    return 0


def cells(text: str) -> list[str]:
    """The code of those that have some."""
    found: list[str] = []
    for part in f"\n{text}".split("\n# %%")[1:]:
        heading, _, body = part.partition("\n")
        if "[markdown]" not in heading:
            found.append(body)
    return found


def outcome(code: str, scope: dict[str, Any]) -> dict[str, Any]:
    parsed = ast.parse(code)
    last = parsed.body.pop() if isinstance(parsed.body[-1], ast.Expr) else None
    printed = io.StringIO()
    value = None
    with contextlib.redirect_stdout(printed):
        exec(compile(parsed, "<cell>", "exec"), scope)
        if isinstance(last, ast.Expr):
            value = eval(compile(ast.Expression(last.value), "<cell>", "eval"), scope)
    return {"code": code.strip(), "printed": printed.getvalue(), **display(value)}


def display(value: Any) -> dict[str, Any]:
    """As IPython chooses."""
    if hasattr(value, "_repr_mimebundle_"):
        html = value._repr_mimebundle_()["text/html"]
    elif hasattr(value, "_repr_html_"):
        html = value._repr_html_()
    else:
        html = None
    columns = list(map(str, value.columns)) if hasattr(value, "columns") else None
    return {"kind": type(value).__name__, "text": repr(value), "html": html, "columns": columns}


if __name__ == "__main__":
    sys.exit(main())
