"""The thread that reads a device: when it reads, what it gives, and that a driver which hangs costs only telemetry."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator

import pytest

from farm.backends.api import Counters, Process, Sample
from farm.guard.sampler import Sampler, own_pids
from farm.process.host import process_name


class Fake:
    """A reader that counts how often it is asked; it hangs, fails or dawdles when told to."""

    def __init__(self, takes_s: float = 0.0):
        self.samples = 0
        self.takes_s = takes_s
        self.fail = self.closed = False
        self.hang = threading.Event()
        self.free = threading.Event()

    def sample(self) -> Sample:
        if self.hang.is_set():
            self.free.wait(30)
        if self.fail:
            raise OSError("lost")
        time.sleep(self.takes_s)
        self.samples += 1
        return Sample(0.0, float(self.samples))

    def counters(self) -> Counters:
        return Counters(self.samples)

    def memory_used_mib(self) -> float | None:
        return 7.0

    def close(self) -> None:
        self.closed = True


@pytest.fixture
def fake() -> Iterator[Fake]:
    reader = Fake()
    yield reader
    reader.free.set()


def test_even_the_shortest_block_has_a_sample_before_and_after(fake: Fake) -> None:
    watch = Sampler(fake)
    watch.begin()
    found = watch.end()[0]
    assert len(found) >= 2
    assert [s.sm_clock_mhz for s in found] == [float(i + 1) for i in range(len(found))]
    assert found[0].at <= found[-1].at <= time.monotonic()
    assert (watch.counters().ecc_uncorrected, watch.memory_used_mib()) == (fake.samples, 7.0)
    watch.close()
    assert fake.closed


def test_samples_come_while_it_waits_and_stop_with_the_block(fake: Fake) -> None:
    watch = Sampler(fake)
    watch.begin()
    end = time.monotonic() + 20
    while fake.samples < 5:
        assert time.monotonic() < end
        time.sleep(0.01)
    assert len(watch.end()[0]) >= 5
    before = fake.samples
    time.sleep(0.1)
    assert fake.samples == before
    watch.begin()
    assert len(watch.end()[0]) < 5  # each block has its own
    watch.close()


@pytest.mark.parametrize(("told", "rate"), [("0", 0.0), ("-3", 0.0), ("10", 10.0), ("often", 50.0), ("nan", 0.0)])
def test_the_rate_is_the_environments(fake: Fake, monkeypatch: pytest.MonkeyPatch, told: str, rate: float) -> None:
    monkeypatch.setenv("FARM_TELEMETRY_HZ", told)
    watch = Sampler(fake)
    assert watch._rate == rate
    if not rate:
        watch.begin()
        assert len(watch.end()[0]) == 2
    watch.close()


def test_a_reading_that_costs_much_is_used_again(fake: Fake) -> None:
    fake.takes_s = 0.2
    watch = Sampler(fake)
    for _ in range(3):
        watch.begin()
        assert len(watch.end()[0]) >= 2
    assert fake.samples == 1
    watch.close()


def test_a_driver_that_hangs_is_given_up(fake: Fake) -> None:
    fake.hang.set()
    watch = Sampler(fake, answer_s=0.2)
    watch.begin()
    assert watch.end()[0] == []
    assert "did not answer within 0.2 s" in watch.failed
    waiting = watch._asks.qsize()
    assert watch.counters() == Counters()
    assert watch.memory_used_mib() is None
    assert watch._asks.qsize() == waiting  # it is not asked again, so nobody waits again
    watch.close()


def test_a_reader_that_raises_gives_samples_that_know_nothing(fake: Fake) -> None:
    fake.fail = True
    watch = Sampler(fake)
    watch.begin()
    found = watch.end()[0]
    assert found
    assert all(s.sm_clock_mhz is None and s.at > 0 for s in found)
    assert watch.counters() is not None
    watch.close()


def test_own_pids_are_found_through_proc() -> None:
    # `cat` has answered before its pid is told: `Popen` returns in the middle of exec, before the kernel renames it.
    script = (
        "import subprocess as s; p = s.Popen(['cat'], stdin=s.PIPE, stdout=s.PIPE, bufsize=0); "
        "p.stdin.write(b'x\\n'); p.stdout.readline(); print(p.pid, flush=True); p.wait()"
    )
    child = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True)
    try:
        assert child.stdout is not None
        grandchild = int(child.stdout.readline())
        listed = (Process(grandchild), Process(os.getpid()), Process(2**30))
        assert process_name(grandchild) == "cat" and process_name(2**30) == ""
        assert own_pids(child.pid, listed) == {child.pid, grandchild}
        assert own_pids(child.pid, None) == {child.pid}
    finally:
        subprocess.run(["kill", "-9", str(grandchild), str(child.pid)], check=False)
        child.wait(10)
