"""The dependency rule as data: what each package may import, from `services` and from elsewhere."""

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
SERVICES = ROOT / "services"

OURS = {
    "core": set(),
    "pb": {"pb"},
    "modelfiles": {"core"},
    "engine": {"core", "modelfiles"},
    "runtime": {"core", "pb"},
    "gateway": {"core", "runtime", "pb", "modelfiles"},
    "scheduler": {"core", "runtime", "pb"},
    "kvstore": {"core", "runtime", "pb"},
    "prefill": {"core", "engine", "modelfiles", "runtime", "pb"},
    "decode": {"core", "engine", "modelfiles", "runtime", "pb"},
    "cli": {"core", "runtime", "pb", "modelfiles"},
    "simulation": {"core", "scheduler"},
}
SHELL = {"grpc", "grpc_health", "grpc_reflection", "google", "nats", "opentelemetry", "uvloop", "pydantic"}
SHELL |= {"pydantic_settings", "prometheus_client", "xxhash"}
THEIRS = {
    "core": set(),
    "pb": {"google", "grpc"},
    "modelfiles": {"numpy", "gguf", "safetensors", "tokenizers", "huggingface_hub", "jinja2"},
    "engine": {"torch", "triton", "numba", "llvmlite", "numpy", "safetensors", "llguidance"},
    "runtime": SHELL,
    "gateway": {"grpc", "google", "opentelemetry", "pydantic", "starlette", "uvicorn", "tokenizers", "jinja2"},
    "scheduler": {"numpy", "pydantic", "grpc", "opentelemetry"},
    "kvstore": {"xxhash", "pydantic", "grpc", "opentelemetry", "numpy"},
    "prefill": {"pydantic", "grpc", "opentelemetry", "xxhash"},
    "decode": {"pydantic", "grpc", "opentelemetry", "xxhash"},
    "cli": {"typer", "rich", "grpc", "google", "nats", "opentelemetry", "pydantic"},
    "simulation": set(),
}
IMPURE = {"asyncio", "time", "random", "os", "logging", "threading", "socket", "datetime", "subprocess", "pathlib"}
BANNED_NAMES = {"utils", "util", "common", "helpers", "helper", "misc", "base", "manager", "managers", "handlers"}
PACKAGES = sorted(OURS)


def sources(package: str) -> list[Path]:
    return sorted((SERVICES / package).rglob("*.py"))


def imports(path: Path) -> Iterator[tuple[str, int, ast.AST]]:
    """(module, relative level, node) of every import in a file."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield alias.name, 0, node
        elif isinstance(node, ast.ImportFrom):
            yield node.module or "", node.level, node


def test_every_package_has_a_rule() -> None:
    found = {path.name for path in SERVICES.iterdir() if path.is_dir() and not path.name.startswith("__")}
    assert found == set(OURS) == set(THEIRS)


@pytest.mark.parametrize("package", PACKAGES)
def test_imports_follow_the_rule(package: str) -> None:
    wrong = []
    for path in sources(package):
        for module, level, _ in imports(path):
            top, _, rest = module.partition(".")
            if level:
                wrong.append(f"{path.name}: relative import")
            elif top == "services":
                target = rest.partition(".")[0]
                if target and target != package and target not in OURS[package]:
                    wrong.append(f"{path.name}: services.{target}")
            elif top not in sys.stdlib_module_names and top not in THEIRS[package]:
                wrong.append(f"{path.name}: {top}")
    assert not wrong


def test_core_knows_no_clock_no_randomness_and_no_io() -> None:
    wrong = [f"{path.name}: {m}" for path in sources("core") for m, _, _ in imports(path) if m.split(".")[0] in IMPURE]
    assert not wrong


def test_only_main_reads_the_environment() -> None:
    wrong = []
    for path in SERVICES.rglob("*.py"):
        if path.name == "__main__.py":
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Attribute) and node.attr in ("environ", "getenv", "environb"):
                wrong.append(str(path.relative_to(ROOT)))
    assert not wrong


def test_only_the_edge_aborts_an_rpc() -> None:
    wrong = []
    for path in SERVICES.rglob("*.py"):
        calls = (node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Call))
        for call in calls:
            if ast.unparse(call.func).endswith("context.abort"):
                wrong.append(str(path.relative_to(ROOT)))
    assert set(wrong) <= {"services/runtime/edge.py"}


def test_nothing_is_imported_inside_a_function() -> None:
    wrong = []
    for path in SERVICES.rglob("*.py"):
        functions = [
            n for n in ast.walk(ast.parse(path.read_text())) if isinstance(n, ast.FunctionDef | ast.AsyncFunctionDef)
        ]
        for function in functions:
            if any(isinstance(node, ast.Import | ast.ImportFrom) for node in ast.walk(function)):
                wrong.append(f"{path.relative_to(ROOT)}:{function.lineno}")
    assert not wrong


def test_there_is_no_import_cycle() -> None:
    graph: dict[str, set[str]] = {}
    for path in SERVICES.rglob("*.py"):
        name = ".".join(path.relative_to(ROOT).with_suffix("").parts)
        graph[name] = {m for m, _, _ in imports(path) if m.startswith("services.")}
        for module, _, node in imports(path):
            if isinstance(node, ast.ImportFrom):
                graph[name] |= {f"{module}.{alias.name}" for alias in node.names}
    done: set[str] = set()

    def visit(name: str, trail: tuple[str, ...]) -> None:
        assert name not in trail, f"cycle: {' -> '.join((*trail, name))}"
        if name in done:
            return
        for target in graph.get(name, ()):
            if target in graph:
                visit(target, (*trail, name))
        done.add(name)

    for name in graph:
        visit(name, ())


def test_files_are_small_rooms() -> None:
    long = {
        str(path.relative_to(ROOT)): lines
        for path in SERVICES.rglob("*.py")
        if path.parent.name != "pb" and (lines := len(path.read_text().splitlines())) > 300
    }
    assert not long


def test_no_drawer_has_crept_in() -> None:
    wrong = [
        str(p.relative_to(ROOT))
        for p in SERVICES.rglob("*.py")
        if p.stem in BANNED_NAMES or p.parent.name in BANNED_NAMES
    ]
    assert not wrong


def test_nothing_is_unpickled() -> None:
    wrong = []
    for path in SERVICES.rglob("*.py"):
        wrong += [
            f"{path.name}: {m}"
            for m, _, _ in imports(path)
            if m.split(".")[0] in {"pickle", "marshal", "shelve", "dill"}
        ]
    assert not wrong


def test_package_docstrings_say_what_they_own() -> None:
    for package in PACKAGES:
        tree = ast.parse((SERVICES / package / "__init__.py").read_text())
        assert ast.get_docstring(tree), package
        assert len(tree.body) == 1, f"{package}/__init__.py holds only a docstring"
