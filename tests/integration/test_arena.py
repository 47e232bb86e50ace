"""The arena's file and its locks, with real processes: made, mapped, let go, and never left behind."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import xxhash

from services.core.errors import InternalError, KVIncompatible
from services.kvstore.arena import Arena
from services.runtime.arena_file import HEADER_BYTES, arena_name, open_existing, sweep
from services.runtime.arena_map import ArenaMap, ArenaPlace

SIZE = 64 << 10
STRIDE = 8192
BLOCK = 5000

OWNER = """
import sys
from pathlib import Path
from services.kvstore.arena import Arena
with Arena(Path(sys.argv[1]), 65536) as arena:
    print(arena.path, arena.nonce, flush=True)
    sys.stdin.read()
"""
WORKER = """
import sys
from pathlib import Path
from services.runtime.arena_map import ArenaMap, ArenaPlace
path, size, stride, nonce, slot = sys.argv[1:]
arena = ArenaMap(ArenaPlace(Path(path), int(size), int(stride), int(nonce), int(slot)), 5000)
print("attached", flush=True)
sys.stdin.read()
"""


def place_of(arena: Arena, slot: int = 1, **changes: object) -> ArenaPlace:
    return ArenaPlace(arena.path, arena.size, STRIDE, arena.nonce, slot)._replace(**changes)


@contextmanager
def program(source: str, *arguments: object) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """A process and the first line it says."""
    command = [sys.executable, "-c", source, *map(str, arguments)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout
        try:
            yield process, process.stdout.readline().strip()
        finally:
            process.kill()


@pytest.fixture
def arena(tmp_path: Path) -> Iterator[Arena]:
    with Arena(tmp_path, SIZE) as made:
        yield made


def test_the_file_is_private_and_all_of_it_is_taken_at_once(arena: Arena) -> None:
    found = arena.path.stat()
    assert found.st_mode & 0o777 == 0o600
    assert found.st_size == HEADER_BYTES + SIZE
    assert found.st_blocks * 512 >= found.st_size


def test_leaving_removes_the_file(tmp_path: Path) -> None:
    with Arena(tmp_path, SIZE) as made:
        assert list(tmp_path.iterdir()) == [made.path]
    assert not list(tmp_path.iterdir())


def test_what_is_written_is_read_where_it_was_written(arena: Arena) -> None:
    arena.write(STRIDE, b"abc")
    assert bytes(arena.read(STRIDE - 1, 5)) == b"\0abc\0"
    assert arena.checksum(STRIDE, 3) == xxhash.xxh3_64_intdigest(b"abc")


def test_two_stores_have_two_arenas_in_one_directory(arena: Arena, tmp_path: Path) -> None:
    with Arena(tmp_path, SIZE) as other:
        assert other.path != arena.path and other.nonce != arena.nonce
        assert arena.path.exists()


def test_an_arena_whose_owner_lives_is_not_swept_and_one_of_a_killed_owner_is(tmp_path: Path) -> None:
    with program(OWNER, tmp_path) as (owner, said):
        path = Path(said.split()[0])
        assert path.exists() and sweep(tmp_path) == 0
        owner.send_signal(signal.SIGKILL)
        owner.wait()
        assert path.exists()
        assert sweep(tmp_path) == 1
        assert not path.exists()


def test_a_store_sweeps_when_it_starts(tmp_path: Path) -> None:
    with program(OWNER, tmp_path) as (owner, _):
        owner.kill()
        owner.wait()
        with Arena(tmp_path, SIZE) as made:
            assert list(tmp_path.iterdir()) == [made.path]


def test_what_is_no_arena_of_this_user_is_left_alone(tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.touch(mode=0o600)
    (tmp_path / arena_name("link")).symlink_to(elsewhere)
    (tmp_path / arena_name("open")).touch(mode=0o644)
    (tmp_path / "diptych.arena").touch(mode=0o600)
    assert sweep(tmp_path) == 0
    assert len(list(tmp_path.iterdir())) == 4


@pytest.mark.parametrize("size", [1 << 50, 1 << 62])
def test_too_little_room_is_said_at_the_start_and_leaves_nothing(size: int, tmp_path: Path) -> None:
    with pytest.raises(InternalError, match="--shm-size"):
        Arena(tmp_path, size)
    assert not list(tmp_path.iterdir())


def test_a_directory_that_is_not_there_is_said_at_the_start(tmp_path: Path) -> None:
    with pytest.raises(InternalError, match="cannot make the arena"):
        Arena(tmp_path / "nowhere", SIZE)


def test_a_worker_and_the_store_see_the_same_pages(arena: Arena) -> None:
    near = ArenaMap(place_of(arena), BLOCK)
    near.populate(0, SIZE)
    assert near.num_pages == SIZE // STRIDE
    page = near.page(2)
    assert page.nbytes == BLOCK
    page[:4] = b"near"
    arena.write(2 * STRIDE + 4, b"far")
    assert bytes(arena.read(2 * STRIDE, 4)) + bytes(page[4:7]) == b"nearfar"
    for number in (-1, near.num_pages):
        with pytest.raises(KVIncompatible):
            near.page(number)
    near.close()


def test_a_mapping_outlives_the_store_and_the_file(tmp_path: Path) -> None:
    with Arena(tmp_path, SIZE) as made:
        near = ArenaMap(place_of(made), BLOCK)
    near.page(0)[:4] = b"late"
    near.close()


def test_pages_that_are_still_referred_to_do_not_hold_the_slot(arena: Arena) -> None:
    near = ArenaMap(place_of(arena, slot=4), BLOCK)
    page = near.page(0)
    near.close()
    assert not arena.is_slot_held(4)
    assert page.nbytes == BLOCK


@pytest.mark.parametrize(
    "changes", [{"nonce": 1}, {"size": SIZE - 4096}, {"stride": 4096}], ids=["nonce", "size", "stride"]
)
def test_an_arena_that_is_not_what_its_store_says_is_not_mapped(changes: dict[str, int], arena: Arena) -> None:
    with pytest.raises(KVIncompatible):
        ArenaMap(place_of(arena, **changes), BLOCK)
    assert not arena.is_slot_held(1)


def test_only_a_private_file_of_this_user_is_mapped(arena: Arena, tmp_path: Path) -> None:
    link = tmp_path / "link"
    link.symlink_to(arena.path)
    with pytest.raises(OSError):
        ArenaMap(place_of(arena, path=link), BLOCK)
    with pytest.raises(OSError):
        ArenaMap(place_of(arena, path=tmp_path / "nothing"), BLOCK)
    arena.path.chmod(0o640)
    with pytest.raises(KVIncompatible):
        ArenaMap(place_of(arena), BLOCK)


def test_a_slot_is_held_by_one_until_it_lets_go(arena: Arena) -> None:
    near = ArenaMap(place_of(arena, slot=7), BLOCK)
    assert arena.is_slot_held(7) and not arena.is_slot_held(8)
    with pytest.raises(OSError):
        ArenaMap(place_of(arena, slot=7), BLOCK)
    # Whoever looks at the file does not lose the lock for its holder.
    os.close(open_existing(arena.path))
    assert arena.is_slot_held(7)
    near.close()
    assert not arena.is_slot_held(7)


def test_a_slot_is_free_when_its_worker_was_killed_and_not_while_it_is_stopped(arena: Arena) -> None:
    with program(WORKER, *place_of(arena, slot=9)) as (worker, said):
        assert said == "attached" and arena.is_slot_held(9)
        worker.send_signal(signal.SIGSTOP)
        assert arena.is_slot_held(9)
        worker.kill()
        worker.wait()
        assert not arena.is_slot_held(9)
