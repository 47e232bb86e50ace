"""Rebuilds services/pb from the .proto files; `--check` fails if the committed code is stale.

The virtual include path `services/pb=protos` makes generated imports read `from services.pb import ...`, so nothing is
edited after generation.
"""

import sys
import tempfile
from pathlib import Path

from grpc_tools import protoc

PROTOS = Path(__file__).parent
ROOT = PROTOS.parent
GENERATED = ROOT / "services" / "pb"


def generate(out: Path) -> None:
    """Writes the modules of every .proto file below `out`."""
    sources = [f"services/pb/{path.name}" for path in sorted(PROTOS.glob("*.proto"))]
    flags = [f"--{kind}_out={out}" for kind in ("python", "grpc_python", "mypy", "mypy_grpc")]
    beside = Path(sys.executable).parent
    flags += [f"--plugin=protoc-gen-{kind}={beside / f'protoc-gen-{kind}'}" for kind in ("mypy", "mypy_grpc")]
    if protoc.main(["protoc", f"-Iservices/pb={PROTOS}", *flags, *sources]) != 0:
        raise SystemExit("protoc failed")


def stale() -> list[str]:
    """Names of committed modules that differ from what the .proto files say, and of those that lack or exceed them."""
    with tempfile.TemporaryDirectory() as folder:
        generate(Path(folder))
        fresh = {path.name: path.read_bytes() for path in (Path(folder) / "services" / "pb").iterdir()}
    kept = {path.name: path.read_bytes() for path in GENERATED.glob("*_pb2*")}
    return sorted(name for name in fresh.keys() | kept.keys() if fresh.get(name) != kept.get(name))


def main() -> None:
    if "--check" in sys.argv:
        if names := stale():
            raise SystemExit(f"stale generated code, run `make protos`: {', '.join(names)}")
        return
    generate(ROOT)


if __name__ == "__main__":
    main()
