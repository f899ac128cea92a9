"""Runners give the same results in the same order, wherever tasks run and whoever dies."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from perfmodel.errors import SpecError
from perfmodel.plan.runners import ClusterRunner, InProcess, LocalProcesses, Runner, runner_at

pytestmark = pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::DeprecationWarning")


def square(number: int) -> int:
    return number * number


def square_or_die(folder: Path, number: int) -> int:
    """Kill the process that works on the task, the first time that task 7 is tried."""
    mark = folder / "died"
    if number == 7 and not mark.exists():
        mark.touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return number * number


def die(number: int) -> int:
    os.kill(os.getpid(), signal.SIGKILL)
    return number


@pytest.fixture(scope="module")
def cluster() -> Iterator[Runner]:
    with runner_at("local", n_workers=2) as runner:
        assert isinstance(runner, ClusterRunner)
        yield runner


TASKS = list(range(40))
SQUARES = [n * n for n in TASKS]


def test_results_come_in_the_order_of_the_tasks(cluster: Runner) -> None:
    for runner in (InProcess(), LocalProcesses(2), cluster):
        assert list(runner.results(square, TASKS)) == SQUARES
        assert list(runner.results(square, [])) == []


def test_no_thread_is_left_that_could_fail_while_the_program_ends() -> None:
    before = set(threading.enumerate())
    assert list(LocalProcesses(2).results(square, TASKS)) == SQUARES
    assert set(threading.enumerate()) <= before


def test_a_killed_process_loses_nothing(tmp_path: Path) -> None:
    assert list(LocalProcesses(2).results(partial(square_or_die, tmp_path), TASKS)) == SQUARES
    assert (tmp_path / "died").exists()


def test_a_killed_worker_of_a_cluster_loses_nothing(cluster: Runner, tmp_path: Path) -> None:
    assert list(cluster.results(partial(square_or_die, tmp_path), TASKS)) == SQUARES
    assert (tmp_path / "died").exists()


def test_a_task_that_always_kills_is_named_and_does_not_go_on_for_ever() -> None:
    with pytest.raises(SpecError, match="ends the process that works on it"):
        list(LocalProcesses(2).results(die, [1, 2]))


def test_a_cluster_that_nobody_answers_for_is_said_with_the_way_out() -> None:
    with pytest.raises(SpecError, match="Without --scheduler"), runner_at("tcp://127.0.0.1:9", patience_s=0.5):
        pass
    with pytest.raises(SpecError, match="cannot be reached"), runner_at("no address"):
        pass


def test_one_worker_is_this_process() -> None:
    with runner_at(n_workers=1) as runner:
        assert isinstance(runner, InProcess)
    with pytest.raises(SpecError, match="at least 1"), runner_at(n_workers=0):
        pass
