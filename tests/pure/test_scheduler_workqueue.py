"""Groups stay with one device while there is other work; nobody waits while there is any; nothing is lost."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from farm.scheduler.workqueue import WorkQueue


def queue(*groups: int) -> WorkQueue:
    """Groups of so many cells, numbered through."""
    names = [name for name, size in enumerate(groups) for _ in range(size)]
    return WorkQueue((cell, name, 1.0) for cell, name in enumerate(names))


def test_a_device_works_through_its_group_in_order_and_the_next_device_takes_the_next() -> None:
    q = queue(3, 3)
    assert [q.pop(d) for d in "abab"] == [0, 3, 1, 4]
    assert (len(q), q.seconds) == (2, 2.0)


def test_an_idle_device_takes_from_the_far_end_of_the_largest() -> None:
    q = queue(2, 4)
    assert [q.pop("a"), q.pop("b")] == [0, 2]
    assert [q.pop("c"), q.pop("a"), q.pop("a")] == [5, 1, 4]
    assert [q.pop("b"), q.pop("a"), q.pop("b")] == [3, None, None]


def test_what_is_given_back_comes_first() -> None:
    q = queue(3)
    first = q.pop("a")
    assert first == 0
    q.push(first)
    assert len(q) == 3
    assert q.pop("b") == 0


def test_the_group_of_a_device_that_is_gone_is_anybodys() -> None:
    q = queue(3, 1)
    q.pop("a")
    q.release("a")
    assert [q.pop("b"), q.pop("b")] == [1, 2]


def test_ahead_tells_the_ends_of_the_own_group_and_of_those_that_nobody_has_begun() -> None:
    q = queue(3, 2, 1)
    q.pop("a")
    assert q.ahead("a") == (1, 2, 3, 4, 5)
    q.pop("b")
    assert q.ahead("a") == (1, 2, 5)
    assert queue().ahead("a") == ()


@settings(max_examples=200, deadline=None)
@given(st.lists(st.integers(1, 5), max_size=6), st.data())
def test_every_cell_comes_out_as_often_as_it_went_in(groups: list[int], data: st.DataObject) -> None:
    q = queue(*groups)
    total, out, pushed = sum(groups), [], 0
    while len(q):
        what = data.draw(st.sampled_from(["pop", "pop", "pop", "push", "release"]))
        device = data.draw(st.sampled_from("abc"))
        if what == "pop":
            cell = q.pop(device)
            assert cell is not None  # nobody waits while there is work
            out.append(cell)
        elif what == "push" and out and pushed < 5:
            q.push(out.pop())
            pushed += 1
        else:
            q.release(device)
        assert len(q) == total - len(out)
        assert abs(q.seconds - len(q)) < 1e-9
    assert sorted(out) == list(range(total))
    assert q.pop("a") is None
