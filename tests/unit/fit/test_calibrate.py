"""`perfmodel calibrate`: rows are chosen by family, files are written whole or not at all, mistakes are named."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from perfmodel.cli import main
from perfmodel.errors import CalibrationError, FitError
from perfmodel.fit.calibrate import (
    calibration_from,
    calibration_text,
    chosen_rows,
    transferred,
    written_calibration,
)
from perfmodel.fit.suggest import suggestions
from perfmodel.measure.csv_io import read_table
from perfmodel.measure.table import Table
from perfmodel.specs.calibration import Calibration
from perfmodel.specs.catalogue import Catalogue, builtin_home

SHIPPED = builtin_home() / "hardware" / "measurements"
NPU = "ascend-910b2"


@pytest.fixture(scope="module")
def catalogue() -> Catalogue:
    return Catalogue((builtin_home(),))


@pytest.fixture(scope="module")
def npu_table() -> Table:
    return read_table(SHIPPED / "ascend-910b2-kernels.csv")


@pytest.fixture(scope="module")
def calibration(catalogue: Catalogue, npu_table: Table) -> Calibration:
    made = calibration_from(catalogue.device(NPU), [npu_table], catalogue=catalogue, leave_out=False)
    return made.calibration


def refused(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    with pytest.raises(SystemExit) as caught:
        main(["calibrate", *arguments])
    assert caught.value.code == 2
    err = capsys.readouterr().err
    assert "Traceback" not in err
    return err


def test_classes_that_the_table_holds(calibration: Calibration) -> None:
    assert {"matmul/16bit", "matmul/int8", "attention/decode", "attention/prefill"} <= set(calibration.kernels)
    assert calibration.fits["matmul/16bit"].runtime == "cann-8.5-graph"
    assert calibration.status == "fit"
    assert calibration.device == NPU


def test_an_engine_takes_its_own_rows_only(catalogue: Catalogue) -> None:
    device = catalogue.device("a100-80gb-sxm")
    table = read_table(SHIPPED / "aiconfigurator-a100.csv")
    assert {r.runtime for r in chosen_rows([table], device, "tensorrt-llm").values()} == {"trtllm-1.0.0"}
    everything = chosen_rows([table], device)
    assert everything["matmul/16bit"].runtime == "vllm-0.14.0"
    assert not any("sglang" in r.runtime for r in everything.values())


def test_a_file_is_written_once(calibration: Calibration, tmp_path: Path) -> None:
    target = tmp_path / "deep" / f"{NPU}.yaml"
    written_calibration(calibration, target)
    before = target.read_text()
    with pytest.raises(CalibrationError, match="exists"):
        written_calibration(calibration.model_copy(update={"title": "other"}), target)
    assert target.read_text() == before
    written_calibration(calibration.model_copy(update={"title": "other"}), target, force=True)
    assert "title: other" in target.read_text()
    assert list(target.parent.iterdir()) == [target]


def test_what_is_written_is_read_back(calibration: Calibration, tmp_path: Path, catalogue: Catalogue) -> None:
    target = written_calibration(calibration, tmp_path / f"{NPU}.yaml")
    assert calibration_text(catalogue.calibration(str(target))) == target.read_text()


def test_an_unwritable_place_is_named(calibration: Calibration, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(CalibrationError, match="cannot be written"):
        written_calibration(calibration, tmp_path / "file" / "x.yaml")


def test_a_transfer_is_wider(calibration: Calibration, catalogue: Catalogue) -> None:
    other = transferred(
        calibration, catalogue.device("ascend-910b4"), catalogue.fitting_rules().transfer, why="fewer cores"
    )
    assert "transferred from ascend-910b2" in other.title
    assert not other.fits
    for name, fit in other.kernels.items():
        own = calibration.kernels[name]
        assert fit.compute_frac.value == own.compute_frac.value
        assert fit.compute_frac.rel_sd >= max(1.5 * own.compute_frac.rel_sd * 0.999, 0.1)
        assert fit.scatter is not None
        assert own.scatter is not None
        assert fit.scatter.value > own.scatter.value


def test_no_rows_of_the_device(catalogue: Catalogue, npu_table: Table) -> None:
    with pytest.raises(FitError, match="no table has enough measurements of l4") as caught:
        calibration_from(catalogue.device("l4"), [npu_table], catalogue=catalogue)
    assert NPU in str(caught.value)


def test_suspect_rows_are_not_fitted(catalogue: Catalogue, npu_table: Table) -> None:
    columns = dict(npu_table.columns) | {"status": np.full(len(npu_table), "suspect", dtype=object)}
    suspect = Table(columns, len(npu_table), npu_table.sidecar, "suspect")
    with pytest.raises(FitError, match="status ok or inferred"):
        calibration_from(catalogue.device(NPU), [suspect], catalogue=catalogue)


def test_command_writes_and_shows(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    target = tmp_path / "mine.yaml"
    main_ok("calibrate", NPU, str(SHIPPED / "ascend-910b2-kernels.csv"), "-o", str(target), "--json")
    shown = json.loads(capsys.readouterr().out)
    assert shown["file"] == str(target)
    classes = {entry["class"]: entry for entry in shown["classes"]}
    assert classes["matmul/16bit"]["used"]
    assert classes["matmul/16bit"]["n_rows"] >= 12
    assert "exists" in refused(capsys, NPU, str(SHIPPED / "ascend-910b2-kernels.csv"), "-o", str(target))


def main_ok(*arguments: str) -> None:
    with pytest.raises(SystemExit) as caught:
        main(list(arguments))
    assert caught.value.code == 0


def test_mistakes_of_the_command(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert "did you mean" in refused(capsys, "a100-80gb-sxn")
    empty = tmp_path / "empty.csv"
    empty.write_text("id,kind,device,runtime,metric,value,status,source\n")
    assert "no table has enough measurements" in refused(capsys, NPU, str(empty), "-o", str(tmp_path / "x.yaml"))
    assert "missing.csv" in refused(capsys, NPU, str(tmp_path / "missing.csv"), "-o", str(tmp_path / "x.yaml"))
    broken = tmp_path / "broken.csv"
    broken.write_text("id,kind,what\n1,gemm,2\n")
    assert "what" in refused(capsys, NPU, str(broken), "-o", str(tmp_path / "x.yaml"))
    assert not (tmp_path / "x.yaml").exists()


def test_suggestions_tell_something(catalogue: Catalogue, capsys: pytest.CaptureFixture[str]) -> None:
    device = catalogue.device("l40s")
    listed = suggestions(device, catalogue.calibration("prior"), catalogue.fitting_rules())
    assert len(listed) == 8
    assert all(one.sd_after < one.sd_before for one in listed)
    assert len({one.kernel for one in listed}) >= 3
    assert all(one.row.value is None and one.expected_s > 0 for one in listed)
    main_ok("calibrate", "l40s", "--suggest", "--json")
    assert len(json.loads(capsys.readouterr().out)["suggestions"]) == 8
