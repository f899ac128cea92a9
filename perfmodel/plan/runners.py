"""Where independent tasks run: in this process, on processes of this machine, or on a Dask cluster.

All runners give the same results in the same order: a task holds everything it needs, seeds included. A worker that
dies loses nothing, since its tasks are given to another one.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from multiprocessing import get_context
from typing import Any, Final, Protocol, TypeVar

from perfmodel.errors import SpecError

__all__ = ["ClusterRunner", "InProcess", "LocalProcesses", "Runner", "runner_at"]

Task = TypeVar("Task")
Result = TypeVar("Result")

_AHEAD: Final = 4
"""Tasks handed out for each worker beyond the one it works on, so that none waits and memory stays small."""
_MOST_DEATHS: Final = 3
"""Deaths of workers in a row without a finished task after which a task itself is taken to be what kills them."""
_CONNECT_S: Final = 10


class Runner(Protocol):
    """Something that works off tasks."""

    def results(self, function: Callable[[Task], Result], tasks: Sequence[Task]) -> Iterator[Result]:
        """Yield function(task) of each task, in the order of the tasks."""


class InProcess:
    """One task after the other, here."""

    def results(self, function: Callable[[Task], Result], tasks: Sequence[Task]) -> Iterator[Result]:
        """Yield function(task) of each task."""
        yield from map(function, tasks)


class LocalProcesses:
    """Processes of this machine."""

    def __init__(self, n_workers: int | None = None) -> None:
        self.n_workers = n_workers or os.cpu_count() or 1

    def results(self, function: Callable[[Task], Result], tasks: Sequence[Task]) -> Iterator[Result]:
        """Yield function(task) of each task, in order; tasks of a process that died are given out again.

        Raises SpecError where processes die again and again without finishing anything.
        """
        done: dict[int, Result] = {}
        given, turn, n_deaths = 0, 0, 0
        pool, waiting = self._pool(), dict[Future[Result], int]()
        try:
            while turn < len(tasks):
                while given < len(tasks) and len(waiting) + len(done) < self.n_workers * (1 + _AHEAD):
                    waiting[pool.submit(function, tasks[given])] = given
                    given += 1
                try:
                    for future in wait(waiting, return_when=FIRST_COMPLETED).done:
                        done[waiting[future]] = future.result()
                        del waiting[future]
                        n_deaths = 0
                except BrokenProcessPool as error:
                    n_deaths += 1
                    if n_deaths >= _MOST_DEATHS:
                        raise SpecError(
                            "a task ends the process that works on it",
                            got=f"{n_deaths} processes died without finishing a task",
                            cure="Is there enough memory? Try fewer workers.",
                        ) from error
                    pool.shutdown(wait=False)
                    pool, again = self._pool(), sorted(set(waiting.values()) - done.keys())
                    waiting = {pool.submit(function, tasks[i]): i for i in again}
                while turn in done:
                    yield done.pop(turn)
                    turn += 1
        finally:
            # Not waiting would leave a thread behind that may still close its pipe while the interpreter ends.
            pool.shutdown(wait=True, cancel_futures=True)

    def _pool(self) -> ProcessPoolExecutor:
        # Forked children would share the threads and locks of numpy as they are at that moment.
        return ProcessPoolExecutor(self.n_workers, mp_context=get_context("spawn"))


class ClusterRunner:
    """A Dask cluster behind a client."""

    def __init__(self, client: Any) -> None:
        self.client = client

    def results(self, function: Callable[[Task], Result], tasks: Sequence[Task]) -> Iterator[Result]:
        """Yield function(task) of each task, in order; Dask gives tasks of lost workers to others."""
        from distributed import as_completed

        gathered: Callable[..., Any] = as_completed

        def submitted(index: int) -> Any:
            # Not pure: equal tasks of two campaigns are not one; the index tells which result came.
            return self.client.submit(_indexed, function, index, tasks[index], pure=False)

        n_ahead = max(1, sum(self.client.nthreads().values())) * (1 + _AHEAD)
        given = min(n_ahead, len(tasks))
        coming = gathered([submitted(i) for i in range(given)], with_results=True)
        done: dict[int, Result] = {}
        turn = 0
        for future, (index, result) in coming:
            future.release()
            done[index] = result
            if given < len(tasks):
                coming.add(submitted(given))
                given += 1
            while turn in done:
                yield done.pop(turn)
                turn += 1


def _indexed(function: Callable[[Task], Result], index: int, task: Task) -> tuple[int, Result]:
    return index, function(task)


@contextmanager
def runner_at(
    scheduler: str | None = None, *, n_workers: int | None = None, patience_s: float = _CONNECT_S
) -> Iterator[Runner]:
    """Give a runner: without a scheduler processes of this machine, one worker: this process.

    `scheduler` is the address of a Dask scheduler, or "local" for a Dask cluster on this machine. Raises SpecError
    where Dask is not installed or nobody answers there within `patience_s`.
    """
    if n_workers is not None and n_workers < 1:
        raise SpecError("no work can be done", where="workers", got=str(n_workers), expected="at least 1")
    if scheduler is None:
        yield InProcess() if n_workers == 1 else LocalProcesses(n_workers)
        return
    try:
        import distributed
    except ImportError as error:
        raise SpecError(
            "no cluster can be used", got="Dask is not installed", cure="pip install 'perfmodel[cluster]'"
        ) from error
    open_client: Callable[..., Any] = distributed.Client
    open_cluster: Callable[..., Any] = distributed.LocalCluster
    if scheduler == "local":
        with (
            open_cluster(n_workers=n_workers, threads_per_worker=1, dashboard_address=":0") as cluster,
            open_client(cluster) as client,
        ):
            yield ClusterRunner(client)
        return
    try:
        client = open_client(scheduler, timeout=patience_s)
    except (OSError, ValueError) as error:
        raise SpecError(
            "the cluster cannot be reached",
            where="--scheduler",
            got=f"{scheduler}: {error}",
            expected="the address of a running `dask scheduler`, as tcp://host:8786",
            cure="Without --scheduler the work is done on this machine.",
        ) from error
    with client:
        client.wait_for_workers(1, timeout=patience_s)
        yield ClusterRunner(client)
