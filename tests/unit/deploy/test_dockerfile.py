"""The images, as far as they can be judged without building them."""

import re
import subprocess
import sys
import tomllib
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.support.chart import ROOT

DOCKERFILE = ROOT / "deploy" / "Dockerfile"
PACKAGE = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]


@dataclass(frozen=True)
class Instruction:
    stage: str
    verb: str
    rest: str


def instructions() -> list[Instruction]:
    """The Dockerfile, line continuations joined, comments left out."""
    lines = [line for line in DOCKERFILE.read_text(encoding="utf-8").splitlines() if not line.startswith("#")]
    found, stage = [], ""
    for line in "\n".join(lines).replace("\\\n", "").splitlines():
        verb, _, rest = line.strip().partition(" ")
        if verb == "FROM":
            stage = rest.rpartition(" AS ")[2]
        if verb:
            found.append(Instruction(stage, verb, " ".join(rest.split())))
    return found


def parents() -> dict[str, str]:
    """Each stage and what it is made from."""
    return {i.stage: i.rest.partition(" AS ")[0] for i in instructions() if i.verb == "FROM"}


def made_from(stage: str) -> set[str]:
    """Stages whose layers or files end up in `stage`, itself included."""
    copied = {
        match.group(1)
        for i in instructions()
        if i.stage == stage and i.verb == "COPY" and (match := re.match(r"--from=(\S+)", i.rest))
    }
    below = {parents()[stage], *copied} & parents().keys()
    return {stage}.union(*(made_from(name) for name in below))


def commands(stage: str) -> list[str]:
    return [i.rest for i in instructions() if i.verb == "RUN" and i.stage in made_from(stage)]


def test_only_the_worker_image_gets_torch() -> None:
    assert any("'worker'" in command for command in commands("worker"))
    assert not any("worker" in command or "torch" in command for command in commands("control"))
    assert not any(package.startswith("torch") for package in PACKAGE["dependencies"])


@pytest.mark.parametrize("target", ["control", "worker"])
def test_every_installation_is_held_to_the_constraints(target: str) -> None:
    installations = [command for command in commands(target) if "pip install" in command]
    assert installations
    assert all("--constraint constraints.txt" in command for command in installations)


@pytest.mark.parametrize("target", ["control", "worker"])
def test_an_image_runs_any_service_as_a_user_without_rights(target: str) -> None:
    last = {i.verb: i.rest for i in instructions() if i.stage in made_from(target)}
    assert last["ENTRYPOINT"] == '["python", "-m"]'
    uid = int(last["USER"].partition(":")[0])
    assert uid > 0


def test_the_packages_installed_first_are_those_of_the_project(tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_bytes((ROOT / "pyproject.toml").read_bytes())
    listed = {"control": PACKAGE["dependencies"], "worker": PACKAGE["optional-dependencies"]["worker"]}
    for name, packages in listed.items():
        (command,) = [c.rest for c in instructions() if c.stage == f"packages-{name}" and "tomllib" in c.rest]
        program = re.search(r'python -c "(.*)" > packages.txt', command)
        assert program
        ran = subprocess.run(
            [sys.executable, "-c", program.group(1)], cwd=tmp_path, capture_output=True, text=True, check=True
        )
        assert ran.stdout.splitlines() == packages


def test_everything_copied_into_the_build_exists_and_is_not_ignored() -> None:
    kept = {
        line.removeprefix("!")
        for line in DOCKERFILE.with_name("Dockerfile.dockerignore").read_text(encoding="utf-8").splitlines()
        if line.startswith("!")
    }
    for instruction in instructions():
        if instruction.verb == "COPY" and not instruction.rest.startswith("--from"):
            sources = instruction.rest.split()[:-1]
            assert all((ROOT / source).exists() for source in sources)
            assert kept.issuperset(sources)


@pytest.mark.parametrize("name", ["Dockerfile", "compose.yaml", "helm/diptych/values.yaml"])
def test_no_file_names_a_host_to_fetch_packages_or_images_from(name: str) -> None:
    text = (ROOT / "deploy" / name).read_text(encoding="utf-8")
    settings = [line for line in text.splitlines() if not line.lstrip().startswith("#") and "otlpEndpoint" not in line]
    assert not [line for line in settings if "https://" in line or "--index-url" in line]
    images = re.findall(r"(?:image|repository|PYTHON_IMAGE)[:=] *([^\s,}]+)", "\n".join(settings))
    assert images
    assert not [image for image in images if "." in image.partition("/")[0].partition(":")[0]]
