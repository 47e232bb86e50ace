"""What is compiled, and whatever is compiled into it, stands where the cache of compiled code looks for changes."""

import ast
from pathlib import Path

from services.engine import jit

SERVICES = Path(jit.__file__).parents[1]
COMPILING = {"inner", "outer", "native"}


def imported(path: Path) -> dict[str, set[str]]:
    """The names that a file takes from each module of ours."""
    found: dict[str, set[str]] = {}
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("services."):
            found.setdefault(node.module, set()).update(alias.name for alias in node.names)
    return found


def test_functions_are_compiled_only_where_the_cache_looks() -> None:
    compiling = [
        path for path in SERVICES.rglob("*.py") if imported(path).get("services.engine.jit", set()) & COMPILING
    ]
    assert compiling, "nothing is compiled"
    assert set(compiling) <= set(jit.compiled_sources())


def test_kernels_are_made_of_nothing_else() -> None:
    sources = {path.relative_to(SERVICES.parent).with_suffix("") for path in jit.compiled_sources()}
    for path in jit.compiled_sources():
        if "kernels" in path.parts:
            assert {Path(*module.split(".")) for module in imported(path)} <= sources, path.name
