"""lerope doctor, as a user runs it: a sound machine, and every way in which one is not."""

import importlib.util
import json
import subprocess
import sys
import tomllib
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from lerope.cli.main import main
from lerope.core.extras import install
from lerope.doctor import checks as doctor
from lerope.doctor import trials
from lerope.model import attention, loss
from lerope.model.kernels import layers, packages, packed_attention, products
from lerope.results import Diagnosis
from lerope.results.base import VERSION
from lerope.rotary import dispatch, formula

CPU, CUDA = torch.device("cpu"), torch.device("cuda", 0)
TRIALS = {
    "rotary": ("reference",),
    "product": (),
    "mlp": (),
    "norm": (),
    "attention": ("sdpa",),
    "head": (),
}


@pytest.fixture(autouse=True)
def _own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    yield
    packages.version.cache_clear()
    packages.import_obstacle.cache_clear()


@pytest.fixture
def run(capsys, monkeypatch):
    """Runs the command and returns its exit code and findings by name; torch.compile only where asked for."""
    compiles = doctor._compile
    monkeypatch.setattr(doctor, "_compile", lambda: doctor.Verdict(doctor.OK, "not tried"))

    def call(*, compile: bool = False):
        if compile:
            monkeypatch.setattr(doctor, "_compile", compiles)
        packages.version.cache_clear()
        packages.import_obstacle.cache_clear()
        code = 0
        try:
            main(["doctor", "--json"])
        except SystemExit as stop:
            code = stop.code
        found = json.loads(capsys.readouterr().out)
        assert (found.pop("kind"), found.pop("version")) == ("diagnosis", VERSION)
        return code, {finding["name"]: finding for finding in Diagnosis(**found).findings}

    return call


@pytest.fixture
def gpu(monkeypatch):
    """A machine that seems to have a GPU, of this compute capability; tries on it succeed."""
    capability = [9, 0]
    monkeypatch.setattr(doctor, "_device", lambda: CUDA)
    monkeypatch.setattr(doctor, "_gpu", lambda: doctor.Verdict(doctor.OK, "1 x NVIDIA H200"))
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: tuple(capability))
    monkeypatch.setattr(torch, "empty", lambda *shape, **how: torch.zeros(0))
    monkeypatch.setattr(dispatch, "triton_obstacle", lambda *tensors, **how: None)
    for name in TRIALS:
        monkeypatch.setattr(trials, name, lambda *arguments: [trials.Outcome("bf16", 2e-3, 4e-3)])
    return capability


def without(monkeypatch, *names):
    """These packages are not installed."""
    real = packages.metadata.version

    def version(package):
        if package in names:
            raise packages.metadata.PackageNotFoundError(package)
        return real(package)

    monkeypatch.setattr(packages.metadata, "version", version)


@pytest.mark.slow
@pytest.mark.skipif(torch.cuda.is_available(), reason="another machine has other lines")
def test_a_sound_machine_as_people_see_it():
    """In a process of its own, torch.compile included."""
    command = [sys.executable, "-m", "lerope", "doctor"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0
    assert "Traceback" not in done.stderr
    *lines, blank, summary = done.stdout.splitlines()
    assert blank == ""
    assert summary.startswith("0 broken")
    for start in (
        "ok       lerope",
        "ok       torch ",
        "missing  GPU ",
        "ok       rotary, reference  off by ",
        "missing  rotary, fused      needs a CUDA device",
        "ok       products           torch (QuACK needs a CUDA device), off by ",
        "ok       attention, sdpa    off by ",
        "missing  attention, flash4  needs a CUDA device",
        "ok       torch.compile      a small function",
        "ok       cache folder",
        "ok       bytecode",
        "ok       sentencepiece      0.",
    ):
        assert sum(line.startswith(start) for line in lines) == 1, start


def test_nothing_heavy_is_imported_before_a_check():
    code = (
        "import sys; from lerope.cli.main import main\n"
        "try: main(['doctor', '--help'])\n"
        "except SystemExit: print([name for name in ('torch', 'transformers', 'numpy') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"


@pytest.mark.skipif(torch.cuda.is_available(), reason="another machine has other lines")
def test_json_says_what_was_tried(run):
    code, found = run()
    assert code == 0
    assert list(found) == list(doctor.checks())
    assert {finding["status"] for finding in found.values()} <= {"ok", "missing"}
    for name in ("rotary, reference", "norm", "products", "MLP", "head and loss", "attention, sdpa"):
        assert 0 < found[name]["error"] <= found[name]["tolerance"] < 0.01
    assert found["rotary, fused"]["error"] is None


@pytest.mark.parametrize("name", TRIALS)
def test_rounding_explains_errors_and_leaves_room(name):
    """Nothing is further off than three quarters of its tolerance, and no tolerance reaches 1 %."""
    outcomes = getattr(trials, name)(*TRIALS[name], CPU)
    assert [outcome.dtype for outcome in outcomes] == ["float32", "bf16"]
    for outcome in outcomes:
        assert 0 < outcome.error < 0.75 * outcome.tolerance < 0.0075


@pytest.mark.slow
@pytest.mark.skipif(torch.cuda.is_available(), reason="kernels run in Triton's interpreter")
@pytest.mark.usefixtures("_rounds_as_a_gpu")
def test_the_fused_kernels_pass_in_the_interpreter(monkeypatch):
    monkeypatch.setattr(trials, "_LENGTH", 32)
    outcomes = trials.rotary("triton", CPU)
    triton_obstacle = dispatch.triton_obstacle
    monkeypatch.setattr(layers, "triton_obstacle", lambda *tensors: triton_obstacle(*tensors, interpreted=True))
    for outcome in (*outcomes, *trials.norm(CPU), *trials.mlp(CPU), *trials.head(CPU)):
        assert outcome.is_right, outcome


def off(function, factor, which):
    """A function whose results, or some of them, are wrong by a factor."""

    def wrong(*args, **kwargs):
        out = function(*args, **kwargs)
        if isinstance(out, torch.Tensor):
            return out * factor
        return tuple(x * factor if i in range(len(out))[which] and x is not None else x for i, x in enumerate(out))

    return wrong


@pytest.mark.skipif(torch.cuda.is_available(), reason="another machine runs other code")
@pytest.mark.parametrize(
    ("names", "owner", "attribute", "which"),
    [
        (["rotary, reference"], formula, "_turned", slice(None)),
        (["rotary, reference"], formula, "_torque", slice(None)),  # the gradient of the frequencies alone
        (["norm"], torch, "rms_norm", slice(None)),
        (["products", "MLP"], torch.nn.functional, "linear", slice(None)),
        (["attention, sdpa"], torch.nn.functional, "scaled_dot_product_attention", slice(None)),
        (["head and loss"], loss.Head, "losses_", slice(1)),  # losses alone
        (["head and loss"], loss.Head, "losses_", slice(1, 2)),  # gradients alone
    ],
)
@pytest.mark.parametrize("factor", [1.01, 0.99, float("nan")])
def test_what_is_off_by_one_percent_is_broken(run, monkeypatch, names, owner, attribute, which, factor):
    monkeypatch.setattr(owner, attribute, off(getattr(owner, attribute), factor, which))
    code, found = run()
    assert code == 1
    broken = [finding for finding in found.values() if finding["status"] == "broken"]
    assert set(names) <= {finding["name"] for finding in broken}
    for finding in broken:
        assert "wrong, rounding" in finding["note"]
        assert finding["error"] is None if factor != factor else finding["error"] > finding["tolerance"]


def test_attention_that_looks_across_documents_is_broken(run, monkeypatch):
    real = attention.DocumentMask
    monkeypatch.setattr(trials, "DocumentMask", lambda ids, backend: real(torch.zeros_like(ids), backend))
    code, found = run()
    assert (code, found["attention, sdpa"]["status"]) == (1, "broken")


def test_a_check_that_raises_is_one_line_and_stops_no_other(run, monkeypatch):
    def fail(device):
        raise RuntimeError("\n  the first line\nthe second")

    monkeypatch.setattr(trials, "norm", fail)
    code, found = run()
    assert code == 1
    assert (found["norm"]["status"], found["norm"]["note"]) == ("broken", "RuntimeError: the first line")
    assert [name for name, finding in found.items() if finding["status"] == "broken"] == ["norm"]
    assert list(found) == list(doctor.checks())


def test_torch_that_cannot_be_imported_is_one_line_each(tmp_path):
    (tmp_path / "torch.py").write_text("raise OSError('libcudart.so.13: cannot open shared object file')")
    code = f"import sys; sys.path.insert(0, {str(tmp_path)!r}); from lerope.cli.main import main; main(['doctor'])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (1, "")
    assert "broken   torch              OSError: libcudart.so.13: cannot open shared" in done.stdout
    assert "ok       lerope" in done.stdout


def test_a_missing_package_is_no_error_and_comes_with_the_command(run, monkeypatch):
    without(monkeypatch, "sentencepiece", "matplotlib")
    code, found = run()
    assert code == 0
    assert found["sentencepiece"] | {"note": ""} == {
        "name": "sentencepiece",
        "status": "missing",
        "note": "",
        "fix": install("data"),
        "error": None,
        "tolerance": None,
    }
    assert found["matplotlib"]["fix"] == install("plots")


def test_a_package_that_is_too_old_is_missing(run, monkeypatch):
    monkeypatch.setattr(doctor, "_least_version", lambda name: "99.1" if name == "zstandard" else None)
    code, found = run()
    assert (code, found["zstandard"]["status"], found["pyarrow"]["status"]) == (0, "missing", "ok")
    assert "lerope needs 99.1 or later" in found["zstandard"]["note"]


def test_sources_that_are_not_installed_ask_for_no_version(run, monkeypatch):
    """As in a training image with the sources on PYTHONPATH."""

    def requires(package):
        raise doctor.metadata.PackageNotFoundError(package)

    monkeypatch.setattr(doctor.metadata, "requires", requires)
    code, found = run()
    assert (code, found["pyarrow"]["status"]) == (0, "ok")


def test_a_package_that_fails_is_broken(run, monkeypatch):
    real = packages.import_module

    def import_module(name):
        if name == "pyarrow":
            raise ImportError("libarrow.so: undefined symbol\nand more")
        return real(name)

    monkeypatch.setattr(packages, "import_module", import_module)
    code, found = run()
    assert (code, found["pyarrow"]["status"], found["zstandard"]["status"]) == (1, "broken", "ok")
    assert found["pyarrow"]["note"].endswith("(ImportError: libarrow.so: undefined symbol")
    assert found["pyarrow"]["fix"] == "pip install --force-reinstall pyarrow"


def test_a_cache_folder_that_cannot_be_written_to_is_broken(run, monkeypatch, tmp_path):
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    code, found = run()
    assert (code, found["cache folder"]["status"]) == (1, "broken")
    assert found["cache folder"]["note"].startswith(f"{tmp_path}/file/lerope ")
    assert "XDG_CACHE_HOME" in found["cache folder"]["fix"]


def test_the_cache_folder_is_left_as_it_was(run, tmp_path):
    run()
    assert list((tmp_path / "cache" / "lerope").iterdir()) == []


def test_python_that_compiles_its_source_at_each_start_is_named_with_what_ends_it(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "pycache_prefix", str(tmp_path))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    verdict = doctor._bytecode()
    assert (verdict.status, verdict.fix) == (doctor.MISSING, "unset PYTHONDONTWRITEBYTECODE")
    assert str(tmp_path) in verdict.note
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    assert "PYTHONPYCACHEPREFIX" in doctor._bytecode().fix
    compiled = Path(importlib.util.cache_from_source(torch.__file__))
    compiled.parent.mkdir(parents=True)
    compiled.touch()
    assert doctor._bytecode().status == doctor.OK


@pytest.mark.slow
@pytest.mark.skipif(torch.cuda.is_available(), reason="a CUDA device needs Triton's compiler instead")
def test_without_a_compiler_a_cpu_misses_it_and_says_what_to_install(monkeypatch):
    monkeypatch.setenv("CXX", "no-such-compiler")
    verdict = doctor._compile()
    assert (verdict.status, verdict.note) == (doctor.MISSING, "no C++ compiler was found")
    assert "apt install build-essential" in verdict.fix


def test_a_compiled_function_that_is_wrong_is_broken(monkeypatch):
    answers = [("0.01\n", 0), ("nan\n", 0), ("CompileError: no\n", 1), ("", -11)]
    for said, code in answers:
        done = subprocess.CompletedProcess([], code, said, "")
        monkeypatch.setattr(subprocess, "run", lambda *args, done=done, **kwargs: done)
        verdict = doctor._compile()
        assert verdict.status == doctor.BROKEN
    assert verdict.note.endswith("-11")


@pytest.mark.parametrize(
    ("error", "fix"),
    [
        (RuntimeError("Failed to find C compiler. Please specify via CC environment variable"), "build-essential"),
        (RuntimeError("Command '['/usr/bin/gcc', 'main.c']' returned non-zero exit status 1."), "python3-dev"),
        (torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 MiB"), "nvidia-smi"),
        (RuntimeError("torch.compiler is unhappy"), ""),
    ],
)
def test_known_errors_come_with_what_helps(error, fix):
    def fail():
        raise error

    verdict = doctor._isolated(fail)
    assert verdict.status == doctor.BROKEN
    assert fix in verdict.fix
    assert bool(fix) == bool(verdict.fix)


def test_a_gpu_with_everything(run, monkeypatch, gpu):
    monkeypatch.setattr(products, "quack_obstacle", lambda *tensors: None)
    monkeypatch.setattr(packed_attention, "flash_obstacle", lambda version, device: None)
    code, found = run()
    assert code == 0
    kernels = [name for name in found if name.startswith(("rotary", "attention", "norm", "products", "MLP", "head"))]
    assert {found[name]["status"] for name in kernels} == {"ok"}
    assert found["products"]["note"] == found["MLP"]["note"] == "QuACK, off by 2e-03 in bf16"
    assert found["norm"]["note"] == "Triton, off by 2e-03 in bf16"


def test_a_gpu_without_the_fast_packages(run, monkeypatch, gpu):
    monkeypatch.setattr(products, "_QUACK", None)
    without(monkeypatch, "flash-attn-4", "quack-kernels")
    code, found = run()
    assert code == 0
    for name, package in (("products", "quack-kernels"), ("attention, flash4", "flash-attn-4")):
        assert (found[name]["status"], found[name]["fix"]) == ("missing", install("fast"))
        assert f"{package} is not installed" in found[name]["note"]
    gpu[0] = 7
    code, found = run()
    assert code == 0
    assert found["attention, flash4"]["fix"] == found["products"]["fix"] == "", "no package helps an old GPU"
    assert (found["attention, varlen"]["status"], found["attention, flex"]["status"]) == ("missing", "ok")


@pytest.mark.parametrize(("cuda", "fix"), [("13.0", "nvidia-cutlass-dsl[cu13]"), ("12.8", "flash-attn-4")])
def test_fast_packages_that_fail_are_broken(run, monkeypatch, gpu, cuda, fix):
    monkeypatch.setattr(torch.version, "cuda", cuda)
    monkeypatch.setattr(products, "quack_obstacle", lambda *tensors: "quack-kernels 0.6.5 does not work here (E: x)")
    problem = "flash-attn-4 4.0 does not work here (E: x)"
    monkeypatch.setattr(packed_attention, "flash_obstacle", lambda version, device: problem if version == 4 else None)
    monkeypatch.setattr(packages.metadata, "version", lambda package: "99.0")
    code, found = run()
    assert code == 1
    for name in ("products", "attention, flash4"):
        assert found[name]["status"] == "broken"
        assert fix in found[name]["fix"]


def test_a_gpu_without_triton(run, monkeypatch, gpu):
    monkeypatch.setattr(dispatch, "triton_obstacle", lambda *tensors, **how: "triton is not installed")
    _, found = run()
    assert found["rotary, fused"]["note"].startswith("triton is not installed")
    assert (found["rotary, fused"]["status"], found["rotary, fused"]["fix"]) == (
        "missing",
        install("kernels"),
    )


def test_gpus_are_counted_with_memory_and_capability(monkeypatch):
    properties = SimpleNamespace(name="NVIDIA H200", total_memory=139 * 2**30, major=9, minor=0)
    ones = torch.ones
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda index: properties)
    monkeypatch.setattr(torch, "ones", lambda size, device: ones(size))
    assert doctor._gpu() == (doctor.OK, "2 x NVIDIA H200, 139 GiB, compute capability 9.0", "", None)


@pytest.mark.parametrize(
    ("there", "hidden", "cuda", "status", "word"),
    [
        (False, None, None, "missing", "none on this machine"),
        (True, "", None, "missing", "CUDA_VISIBLE_DEVICES"),
        (True, None, None, "broken", "built without CUDA"),
        (True, None, "13.0", "broken", "cannot use it"),
    ],
)
def test_why_no_gpu_is_used(monkeypatch, there, hidden, cuda, status, word):
    """The most common reason for slow training: a GPU is there and torch does not see it."""
    monkeypatch.setattr(Path, "glob", lambda path, pattern: iter([path / "nvidia0"] if there else []))
    monkeypatch.setattr(torch.version, "cuda", cuda)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if hidden is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", hidden)
    verdict = doctor._no_gpu()
    assert verdict.status == status
    assert word in verdict.note


def test_packages_and_backends_are_those_of_the_project():
    assert doctor._BACKENDS == attention.BACKENDS
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    needed: dict[str, list[str]] = {}
    for extra in ("data", "hf", "gguf", "scaling", "plots", "tensorboard", "wandb", "trackio"):
        for need in extras[extra]:
            needed.setdefault(need.split(">=")[0], []).append(extra)
    for package in needed.keys() - {"lerope[scaling]"}:
        assert doctor.PACKAGES[package][1] in needed[package]
    assert {extra for _, extra, _ in doctor.PACKAGES.values()} <= set(extras)
    assert doctor._least_version("transformers") == "5.5"


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_this_gpu_is_sound(run):
    code, found = run(compile=True)
    assert code == 0, [finding for finding in found.values() if finding["status"] == "broken"]
    assert found["rotary, fused"]["status"] == found["torch.compile"]["status"] == "ok"


def test_a_fix_is_printed_once_where_no_other_stands_between(monkeypatch, capsys):
    fixes = {"a": "pip install it", "b": "", "c": "pip install it", "d": "unset THIS", "e": "pip install it"}
    found = [{"status": "missing", "name": name, "note": f"for {name}", "fix": fix} for name, fix in fixes.items()]
    monkeypatch.setattr("lerope.cli.doctor.examine", lambda trying: iter(found))
    main(["doctor"])
    text = capsys.readouterr().out
    for said in ("for a; pip install it", "for c; the same", "for d; unset THIS", "for e; pip install it"):
        assert f"{said}\n" in text
