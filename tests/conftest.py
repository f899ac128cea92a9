"""Fixtures that many tests share: the shipped catalogue, and engines of catalogued parts, each built once."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout
from functools import cache
from io import StringIO
from typing import NamedTuple

import pytest

from perfmodel.cli import main
from perfmodel.specs.calibration import Calibration
from perfmodel.specs.catalogue import Catalogue, ModelChoice, builtin_home
from perfmodel.specs.device import Device
from perfmodel.specs.layout import Layout
from perfmodel.specs.runtime import Runtime
from perfmodel.specs.setup import Setup, Speculation
from perfmodel.step.step import Engine


@pytest.fixture(scope="session")
def catalogue() -> Catalogue:
    """What perfmodel ships, and nothing that lies in the home of whoever runs the tests."""
    return Catalogue((builtin_home(),))


@pytest.fixture(scope="session")
def engine_of(catalogue: Catalogue) -> Callable[..., Engine]:
    """A function from names to an engine: engine_of("llama-3.1-8b", "a100-80gb-sxm", layout=Layout(tp=2))."""
    model: Callable[[str], ModelChoice] = cache(catalogue.model)
    device: Callable[[str], Device] = cache(catalogue.device)
    runtime_of: Callable[[str], Runtime] = cache(catalogue.runtime)
    calibration_of: Callable[[str], Calibration] = cache(catalogue.calibration)
    one = Layout()

    @cache
    def engine(
        name: str,
        *devices: str,
        layout: Layout = one,
        calibration: str = "prior",
        runtime: str = "vllm-0.11",
        scheme: str | None = None,
        speculation: Speculation | None = None,
        dtype: str = "auto",
        kv_dtype: str = "auto",
        offload_bytes: float = 0.0,
        system: str | None = None,
    ) -> Engine:
        choice, cards = model(name), tuple(device(d) for d in devices)
        wired = catalogue.system(system) if system else None
        if wired is None and layout.n_devices > 1:
            wired = catalogue.usual_system(cards[0], layout.n_devices)
        setup = Setup(
            model=choice.model,
            scheme=catalogue.scheme(scheme or choice.scheme),
            layout=layout,
            runtime=runtime_of(runtime),
            devices=cards,
            system=wired,
            dtype=dtype,
            kv_dtype=kv_dtype,
            speculation=speculation,
            offload_bytes=offload_bytes,
        )
        return Engine(setup.resolved(), calibration_of(calibration))

    return engine


class Ran(NamedTuple):
    """What a run of the command line gave."""

    code: int
    out: str
    err: str


@pytest.fixture(scope="session")
def run_cli(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Ran]:
    """A function that runs the command line in this process, with an empty user catalogue: run_cli("memory", ...)."""
    home = str(tmp_path_factory.mktemp("home"))

    def run(*arguments: str) -> Ran:
        out, err = StringIO(), StringIO()
        with pytest.MonkeyPatch.context() as patch, redirect_stdout(out), redirect_stderr(err):
            patch.setenv("XDG_DATA_HOME", home)
            try:
                main(arguments)
            except SystemExit as stop:
                code = stop.code
        assert isinstance(code, int)
        return Ran(code, out.getvalue(), err.getvalue())

    return run
