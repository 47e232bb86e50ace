"""The simulated caches beside slow and obvious ones."""

from hypothesis import given, settings
from hypothesis import strategies as st

from services.simulation.block_cache import StoreBlocks, WorkerBlocks

NAMES = st.lists(st.integers(0, 9), min_size=1, max_size=6, unique=True)


@settings(max_examples=100, deadline=None)
@given(st.integers(1, 8), st.lists(st.tuples(st.booleans(), NAMES), max_size=30))
def test_a_store_is_a_list_in_order_of_use(capacity: int, acts: list[tuple[bool, list[int]]]) -> None:
    store, model = StoreBlocks(capacity), list[int]()
    for is_put, names in acts:
        before = set(model)
        if is_put:
            came, went = store.put(names)
            for name in names:
                if name in model:
                    model.remove(name)
                model.append(name)
            model = model[-capacity:]
            assert set(came) == set(model) - before and set(went) == before - set(model)
        else:
            count = store.hits(names)
            assert count == next((at for at, name in enumerate(names) if name not in model), len(names))
            for name in reversed(names[:count]):
                model.remove(name)
                model.append(name)
        assert len(store) == len(model) <= capacity


@settings(max_examples=100, deadline=None)
@given(st.integers(4, 12), st.lists(st.tuples(st.booleans(), NAMES, st.integers(0, 3)), max_size=30))
def test_a_worker_never_holds_more_than_it_has(capacity: int, acts: list[tuple[bool, list[int], int]]) -> None:
    blocks = WorkerBlocks(capacity)
    holders: list[tuple[list[int], int]] = []
    for is_taken, names, count in acts:
        if is_taken:
            prefix = names[: blocks.hits(names)]
            rest = names[len(prefix) :][:count]
            if not blocks.fits(prefix, count):
                continue
            blocks.take(prefix, count)
            sealed = [name for name in rest if blocks.seal(name)]
            holders.append((prefix + sealed, count - len(sealed)))
        elif holders:
            blocks.release(*holders.pop(0))
        blocks.check_invariants()
        assert blocks.used == sum(count for _, count in holders) + len({n for held, _ in holders for n in held})


def test_the_end_of_a_prompt_gives_way_before_its_beginning() -> None:
    blocks = WorkerBlocks(6)
    blocks.take((), 4)
    assert all(blocks.seal(name) for name in (1, 2, 3, 4))
    blocks.release([1, 2, 3, 4], 0)
    blocks.take((), 4)
    assert blocks.hits([1, 2, 3, 4]) == 2
