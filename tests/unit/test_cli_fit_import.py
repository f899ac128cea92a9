"""`fit`, `import`, `predict` and `validate` as people type them, and what they answer to bad input."""

from __future__ import annotations

import csv
import json
from io import StringIO
from pathlib import Path

import pytest
import yaml

from perfmodel.measure.csv_io import read_table
from perfmodel.measure.importers.registry import FORMATS
from perfmodel.specs.catalogue import builtin_home
from perfmodel.specs.files import read_spec
from perfmodel.specs.system import System
from tests.unit.cli_parts import Run

SHIPPED = builtin_home() / "hardware" / "measurements"
IPC = str(SHIPPED / "article-ipc-decay.csv")
PRINTED = "contention_printed:base=3.27,alpha=0.82,beta=1.35"
FOREIGN = Path(__file__).parent / "measure" / "data"
CONTEXT = ("--device", "a100-80gb-sxm", "--model", "qwen2.5-7b", "--runtime", "vllm-0.6.3", "--n-devices", "4")
LOAD = ("--batch", "8", "--input-tokens", "512", "--output-tokens", "128")


def file(folder: Path, text: str, name: str = "data.csv") -> str:
    path = folder / name
    path.write_text(text)
    return str(path)


# ---- fit ---------------------------------------------------------------------------------------------------------


def test_a_shipped_table_goes_by_its_name(run_cli: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The example of the help runs anywhere; a file of the same name in the folder goes first."""
    monkeypatch.chdir(tmp_path)
    columns = ("--x", "n_instances", "--y", "ipc")
    assert run_cli("fit", "article-ipc-decay", *columns).out == run_cli("fit", IPC, *columns).out
    (tmp_path / "article-ipc-decay").write_text("n_instances,ipc\n1,1\n2,2\n3,3\n4,4\n5,5\n6,6\n")
    assert run_cli("fit", "article-ipc-decay", *columns).out != run_cli("fit", IPC, *columns).out


def test_the_ipc_points_are_fitted_honestly(run_cli: Run, tmp_path: Path) -> None:
    picture, out = tmp_path / "ipc.png", tmp_path / "ipc.yaml"
    columns = ("--x", "n_instances", "--y", "ipc")
    ran = run_cli("fit", IPC, *columns, "--evaluate", PRINTED, "--plot", str(picture), "-o", str(out))
    assert ran.code == 0
    assert "4 points are too few for AICc" in ran.out
    assert "does not reproduce the 4 points: R2 = -1.48" in ran.out
    assert "not identifiable with 4 points" in ran.out
    assert "sixteen on eight cards" in ran.out
    assert picture.stat().st_size > 10_000
    document = yaml.safe_load(out.read_text())
    assert document["law"] == "contention_hyperbolic"
    assert document["ranking"]["criterion"] == "left_out"
    assert document["evaluations"][0]["predicted"][0] == pytest.approx(1.929, abs=1e-3)
    again = run_cli("fit", IPC, *columns, "-o", str(out))
    assert again.code == 2
    assert "--force" in again.err
    assert run_cli("fit", IPC, *columns, "-o", str(out), "--force").code == 0


def test_any_csv_is_fitted_with_weights_and_groups(run_cli: Run, tmp_path: Path) -> None:
    rows = [f"{2**i},{5e-6 + 2**i / 2e11:.9g},1e-7,{'small' if i < 16 else 'large'}" for i in range(8, 30)]
    data = file(tmp_path, "bytes,seconds,sd,size\n" + "\n".join(rows) + "\n")
    asked = ("fit", data, "--x", "bytes", "--y", "seconds", "--law", "alpha_beta", "--stderr", "sd", "--group", "size")
    ran = run_cli(*asked, "--json")
    assert ran.code == 0, ran.err
    document = json.loads(ran.out)
    assert document["parameters"]["t0_s"]["value"] == pytest.approx(5e-6, rel=1e-4)
    assert document["parameters"]["bandwidth_bytes_per_s"]["value"] == pytest.approx(2e11, rel=1e-4)
    assert "groups left out" in run_cli(*asked).out


def test_a_robust_loss_shrugs_off_an_outlier(run_cli: Run, tmp_path: Path) -> None:
    rows = [f"{x},{3 + 2 * x if x != 7 else 400}" for x in range(20)]
    data = file(tmp_path, "x,y\n" + "\n".join(rows))
    ran = run_cli("fit", data, "--x", "x", "--y", "y", "--law", "linear", "--loss", "soft_l1", "--json")
    values = [p["value"] for p in json.loads(ran.out)["parameters"].values()]
    assert sorted(values) == pytest.approx([2.0, 3.0], abs=0.2)


def test_rows_of_a_measurement_table_are_chosen(run_cli: Run, tmp_path: Path) -> None:
    head = "id,kind,device,runtime,op,n_devices,message_bytes,metric,value,source\n"
    body = "".join(
        f"{op}{i},collective,a100-80gb-sxm,nccl,{op},8,{2**i},time_s,{1e-5 + k * 2**i / 2e11},own\n"
        for op, k in (("all_reduce", 1), ("all_gather", 2))
        for i in range(10, 26)
    )
    data = file(tmp_path, head + body)
    mixed = run_cli("fit", data, "--x", "message_bytes", "--y", "value")
    assert mixed.code == 2
    assert "several ops" in mixed.err
    chosen = ("--x", "message_bytes", "--y", "value", "--where", "op=all_gather", "--law", "alpha_beta", "--json")
    ran = run_cli("fit", data, *chosen)
    assert json.loads(ran.out)["parameters"]["bandwidth_bytes_per_s"]["value"] == pytest.approx(1e11, rel=1e-3)


@pytest.mark.parametrize(
    ("text", "flags", "words"),
    [
        ("x,y\n1,2\n", "--x x --y y", "no curve can be fitted to 1 row"),
        ("x,y\n3,1\n3,2\n3,4\n", "--x x --y y", "x is constant"),
        ("x,y\n1,2\n2,nan\n", "--x x --y y", "NaN or infinity"),
        ("x,y\n1,2\n2,fast\n", "--x x --y y", "not every cell is a number"),
        ("x,y\n", "--x x --y y", "0 rows"),
        ("", "--x x --y y", "empty"),
        ("x,y\n1,2\n2,3\n", "--x z --y y", "no column 'z'"),
        ("x,y\n1,2\n2,3\n3,5\n", "--x x --y y --law alpha_betta", "did you mean alpha_beta"),
        ("x,y\n1,2\n2,3\n3,5\n", "--x x --y y --loss square", "unknown loss"),
        ("x,y\n1,2\n2,3\n3,5\n", "--x x --y y --residual big", "unknown residual"),
        ("x,y\n1,2\n2,3\n3,5\n", "--x x --y y --law linear --evaluate linear", "cannot be read"),
        ("x,y\n1,2\n2,3\n3,5\n", "--x x --y y --where op=ipc", "no measurement table"),
        ("x,y\n1,2\n2,3\n3,5\n", "--x x", "--y"),
        ("x,y\n1,2\n2,3\n3,5\n", "--x x --y y --plto a.png", "not understood"),
        ("x,y\n1,2\n2,3\n3,5\n", "--x x --y y --plot a.jpeg", "cannot be written as"),
        ("x,y\n1,2\n2,3\n", "--x x --y y --law offset_power", "fewer rows than parameters"),
    ],
)
def test_bad_data_for_a_fit_is_named(run_cli: Run, tmp_path: Path, text: str, flags: str, words: str) -> None:
    ran = run_cli("fit", file(tmp_path, text), *flags.split())
    assert ran.code == 2
    assert words in ran.err
    assert "Traceback" not in ran.err


def test_asking_whether_a_model_fits_leads_to_memory(run_cli: Run) -> None:
    ran = run_cli("fit", "llama-3.1-8b", "h100-sxm")
    assert ran.code == 2
    assert "perfmodel memory llama-3.1-8b h100-sxm" in ran.err


@pytest.mark.parametrize(
    ("y", "where", "words"),
    [("ipcc", "", "did you mean"), ("ipc", "op=hit", "no row has op"), ("ipc", "n_instances=many", "holds numbers")],
)
def test_a_wrong_word_for_a_measurement_table_is_named(run_cli: Run, y: str, where: str, words: str) -> None:
    flags = ("--where", where) if where else ()
    ran = run_cli("fit", IPC, "--x", "n_instances", "--y", y, *flags)
    assert ran.code == 2
    assert words in ran.err


# ---- import ------------------------------------------------------------------------------------------------------


def test_every_format_is_listed(run_cli: Run) -> None:
    listed = run_cli("import", "--list-formats").out.splitlines()
    assert [line.split()[0] for line in listed] == list(FORMATS)


@pytest.mark.parametrize("name", sorted(path.name for path in FOREIGN.iterdir()))
def test_each_foreign_file_becomes_something(run_cli: Run, tmp_path: Path, name: str) -> None:
    out = tmp_path / "out.csv"
    ran = run_cli("import", str(FOREIGN / name), *CONTEXT, *LOAD, "-o", str(out))
    assert ran.code == 0, ran.err
    assert f"{name} is read as" in ran.err
    document = json.loads(run_cli("import", str(FOREIGN / name), *CONTEXT, *LOAD, "--json").out)
    if document["rows"]:
        assert len(read_table(out)) == len(document["rows"])
    else:
        assert out.read_text().strip()


def test_a_topology_becomes_a_system_file(run_cli: Run, tmp_path: Path) -> None:
    out = tmp_path / "box.yaml"
    ran = run_cli("import", str(FOREIGN / "topo_a100.txt"), "--device", "a100-80gb-sxm", "-o", str(out))
    assert ran.code == 0, ran.err
    assert read_spec(System, out).device == "a100-80gb-sxm"
    none = run_cli("import", str(FOREIGN / "vllm_serve.json"), *CONTEXT, "-o", str(tmp_path / "no.yaml"))
    assert none.code == 2
    assert "gives no system file" in none.err


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((), "no file is named"),
        (("nowhere.json",), "nowhere.json"),
        (("{prose}",), "in no format"),
        (("{prose}", "--format", "nccl-test"), "did you mean nccl-tests"),
        (("{nccl}",), "device"),
    ],
)
def test_bad_imports_are_named(run_cli: Run, tmp_path: Path, arguments: tuple[str, ...], words: str) -> None:
    places = {"prose": file(tmp_path, "Once upon a time.\n", "a.txt"), "nccl": str(FOREIGN / "nccl_allreduce.txt")}
    ran = run_cli("import", *(word.format(**places) for word in arguments))
    assert ran.code == 2
    assert words in ran.err


# ---- predict and validate ----------------------------------------------------------------------------------------

QUESTIONS = """id,kind,device,model,runtime,batch,context_tokens,m,n,k,compute_dtype
a,gemm,a100-80gb-sxm,,,,,16,4096,4096,bf16
b,decode_step,rtx-4090,qwen2.5-7b,vllm-0.11,8,1024,,,,
c,decode_step,rtx-4090x,qwen2.5-7b,vllm-0.11,8,1024,,,,
"""


def test_predict_writes_csv_and_json(run_cli: Run, tmp_path: Path) -> None:
    data, out = file(tmp_path, QUESTIONS), tmp_path / "out.csv"
    ran = run_cli("predict", data, "-o", str(out))
    assert ran.code == 0, ran.err
    assert "predicted 2 of 3 rows" in ran.err
    rows = list(csv.DictReader(StringIO(out.read_text())))
    assert [row["id"] for row in rows] == ["a", "b", "c"]
    assert 0 < float(rows[0]["low"]) < float(rows[0]["predicted"]) < float(rows[0]["high"])
    assert rows[1]["bound"] == "weight_read"
    assert "unknown device" in rows[2]["reason"]
    assert rows[2]["predicted"] == ""
    listed = json.loads(run_cli("predict", data, "--json").out)
    assert listed[1]["predicted"] == pytest.approx(float(rows[1]["predicted"]))
    assert listed[2]["predicted"] is None
    ideal = json.loads(run_cli("predict", data, "--json", "--calibration", "ideal").out)
    assert ideal[0]["predicted"] < listed[0]["predicted"]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("hello\nworld\n", "column of the schema"),
        ("kind,device,speed\ngemm,l4,3\n", "speed"),
        ("kind,device,m,n,k,compute_dtype\n", "no rows"),
        ("kind,device\ngemm,l4\n", "kind gemm needs"),
        ("kind,device,m,n,k,compute_dtype\ngemm,l4,16 rows,1,1,bf16\n", "a number in base units"),
        ("kind,device,m,n,k,compute_dtype\ngem,l4,16,1,1,bf16\n", "did you mean gemm"),
        ("kind,device,m,n,k,compute_dtype\ngemm,l4,-16,1,1,bf16\n", "at least 0"),
    ],
)
def test_predict_refuses_what_is_no_table(run_cli: Run, tmp_path: Path, text: str, words: str) -> None:
    ran = run_cli("predict", file(tmp_path, text))
    assert ran.code == 2
    assert words in ran.err
    assert ran.out == ""


def test_predict_never_writes_over_its_table_and_says_when_nothing_worked(run_cli: Run, tmp_path: Path) -> None:
    data = file(tmp_path, QUESTIONS)
    assert run_cli("predict", data, "-o", data).code == 2
    assert (tmp_path / "data.csv").read_text() == QUESTIONS
    lost = file(tmp_path, "kind,device,m,n,k,compute_dtype\ngemm,l44,16,4096,4096,bf16\n", "lost.csv")
    ran = run_cli("predict", lost)
    assert ran.code == 1
    assert "no row could be predicted" in ran.err
    assert run_cli("predict", data, "--calibration", "nonsense").code == 2
    assert run_cli("predict", str(tmp_path / "absent.csv")).code == 2


def test_validate_one_table(run_cli: Run, tmp_path: Path) -> None:
    picture = tmp_path / "parity.png"
    table = str(SHIPPED / "steps-gpt-fast.csv")
    ran = run_cli("validate", table, "--by", "kind,runtime", "--json", "--plot", str(picture))
    assert ran.code == 0, ran.err
    (row,) = json.loads(ran.out)["rows"]
    assert row["runtime"] == "gpt-fast"
    assert row["n"] == 12
    assert 0 < row["median_abs_rel_error"] < row["p90_abs_rel_error"]
    assert picture.stat().st_size > 20_000
    shown = run_cli("validate", table).out
    assert "decode_step" in shown
    assert "median" in shown


def test_validate_writes_a_page(run_cli: Run, tmp_path: Path) -> None:
    page = tmp_path / "accuracy.md"
    ran = run_cli("validate", str(SHIPPED / "steps-awq-local.csv"), "--write", str(page))
    assert ran.code == 0, ran.err
    text = page.read_text()
    assert text.startswith("# Accuracy")
    for heading in ("## By kind, device and software", "## Left out: kernels", "## Stories of the worst groups"):
        assert heading in text
    assert "(Cause: data.)" in text
    assert "rank correlation" in text


def test_validate_fails_when_a_bound_is_exceeded(run_cli: Run) -> None:
    table = str(SHIPPED / "steps-gpt-fast.csv")
    assert run_cli("validate", table, "--bound", "decode_step=50%,90%").code == 0
    ran = run_cli("validate", table, "--bound", "decode_step=0.01%")
    assert ran.code == 1
    assert "exceeds 0.01 %" in ran.err


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("absent.csv",), "absent.csv"),
        (("--by", "kinds"), "did you mean kind"),
        (("--bound", "gemm"), "cannot be read"),
        (("--plot", "a.jpeg"), "cannot be written as"),
    ],
)
def test_validate_names_bad_input(run_cli: Run, arguments: tuple[str, ...], words: str) -> None:
    ran = run_cli("validate", *arguments)
    assert ran.code == 2
    assert words in ran.err
