# SPDX-License-Identifier: Apache-2.0
"""Trained checkpoints in vLLM on a Hopper GPU, their experts by the plug-in: the perplexity of Sluice's own engine.

Needs vLLM, a Hopper GPU, SLUICE_TEST_MODELS (the folder of the trained checkpoints) and `sluice` (SLUICE_PROGRAM, or on the
path), which quantises them. Experts alone are quantised, so that every other part of a model is bfloat16 on both sides. All of vLLM's
processes run at once, one for each checkpoint and side. SLUICE_TEST_REPORT names a file for the table of all numbers.

A checkpoint's text is too short for a bar of 5e-4: where sums in another order flip a rounding of bfloat16, a row takes another
expert, and the standard error of 36 windows is up to 1.7e-3. So ten continuations of every window are scored with it. The model
samples them in float32 on the CPU: text that one side's bfloat16 has sampled is likelier to that side, by 5e-4 to 1e-3.
"""
import json
import math
import os
import pathlib
import shutil
import statistics
import subprocess
import sys
import tempfile

import pytest

from conftest import hopper, installed
from vllm_logprobs import MARK

MODELS = os.environ.get("SLUICE_TEST_MODELS")
PROGRAM = os.environ.get("SLUICE_PROGRAM") or shutil.which("sluice")
WINDOW = 512
SAMPLED, START = 10, 16  # continuations of each window of the text, and the ids of it that they continue
# As tools/gpu_perplexity.py: the bar, and where sums in another order have moved more than that, four standard errors.
BAR, ERRORS = 5e-4, 4
# Of a checkpoint, the formats whose groups divide its experts' rows; vLLM refuses others. 128 x 128 blocks divide none of them.
FORMATS = {"tiny-qwen3-moe": ["bf16", "fp8", "mxfp8", "nvfp4", "mxfp4"],  # 64 columns
           "tiny-deepseek-v3": ["bf16", "fp8", "nvfp4"],  # 48
           "tiny-nemotron-h": ["bf16", "fp8"]}  # 248
CASES = [(model, form) for model, forms in FORMATS.items() for form in forms]

pytestmark = [
    hopper,
    pytest.mark.skipif(not installed("vllm"), reason="vLLM is not installed"),
    pytest.mark.skipif(not MODELS, reason="SLUICE_TEST_MODELS does not name the trained checkpoints"),
    pytest.mark.skipif(not PROGRAM, reason="no sluice on the path, and SLUICE_PROGRAM does not name it"),
]


def windows_of(model):
    """A text's ids in windows of 512, as `sluice eval perplexity` cuts it, and ten sampled windows from the start of each."""
    import sluice_moe
    with sluice_moe.Engine(model, dtype="float32", device="cpu", max_total_tokens=1 << 16) as engine:
        ids = engine.encode((model / "valid.txt").read_text())
        windows = [w for w in (ids[i:i + WINDOW] for i in range(0, len(ids), WINDOW)) if len(w) > START]
        starts = [w[:START] for w in windows for _ in range(SAMPLED)]
        params = [{"temperature": 1, "max_new_tokens": WINDOW - START, "ignore_eos": True, "sampling_seed": seed}
                  for seed in range(len(starts))]
        answers = engine.generate(input_ids=starts, sampling_params=params)
    return windows + [start + answer["output_ids"] for start, answer in zip(starts, answers)]


def quantised(model, form, folder):
    out = folder / f"{model.name}-{form}"
    if form == "bf16":
        out.mkdir()
        for file in model.iterdir():
            if file.name != "golden.safetensors":  # vLLM reads every file of tensors that a folder has
                (out / file.name).symlink_to(file.resolve())
        return out
    calibration = ["--calibration", model / "valid.txt"] if form in ("fp8", "nvfp4") else []
    names = ["--modelopt"] if form == "mxfp8" else []  # vLLM reads others for MiniMax's models alone
    subprocess.run([PROGRAM, "quantize", model, out, "--format", form, "--exclude", r"re:^(?!.*\.experts\.).*", *calibration, *names],
                   check=True, capture_output=True)
    return out


def by_engine(folder, windows):
    """Each window's negative log likelihood in Sluice's own engine on the GPU."""
    import sluice_moe
    with sluice_moe.Engine(folder, dtype="bfloat16", device="cuda", disable_radix_cache=True, max_total_tokens=1 << 15) as engine:
        answers = engine.generate(input_ids=windows, sampling_params={"temperature": 0, "max_new_tokens": 1, "ignore_eos": True},
                                  return_logprob=True, logprob_start_len=0)
    return [-sum(row[0] for row in answer["meta_info"]["input_token_logprobs"] if row[0] is not None) for answer in answers]


def start(folders, windows, on, folder):
    jobs, log = folder / "jobs.json", folder / f"{'on' if on else 'off'}.log"
    jobs.write_text(json.dumps({"folders": {form: str(path) for form, path in folders.items()}, "windows": windows}))
    environment = {**os.environ, "SLUICE_VLLM": str(int(on)), "VLLM_ENABLE_V1_MULTIPROCESSING": "0", "VLLM_NO_USAGE_STATS": "1",
                   "HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1",
                   "VLLM_ALLOW_INSECURE_SERIALIZATION": "1"}  # apply_model() takes a function
    environment.setdefault("VLLM_USE_FLASHINFER_SAMPLER", "0")
    environment.setdefault("VLLM_MLA_DISABLE", "1")  # latent attention has kernels for published widths alone
    script = pathlib.Path(__file__).with_name("vllm_logprobs.py")
    return subprocess.Popen([sys.executable, str(script), str(jobs)], stdout=log.open("w"), stderr=subprocess.STDOUT, env=environment), log


def answers_of(process, log):
    process.wait()
    said = [json.loads(line[line.index(MARK) + len(MARK):]) for line in log.read_text(errors="replace").splitlines() if MARK in line]
    return {answer["name"]: answer for answer in said}


@pytest.fixture(scope="module")
def results():
    """{(model, format): (engine's, plug-in's, vLLM's own answer, tokens that were scored)}"""
    out = {}
    with tempfile.TemporaryDirectory() as scratch:
        jobs = {}
        for name, forms in FORMATS.items():
            model, folder = pathlib.Path(MODELS) / name, pathlib.Path(scratch) / name
            if not model.is_dir():
                continue
            folder.mkdir()
            windows = windows_of(model)
            folders = {form: quantised(model, form, folder) for form in forms}
            jobs[name] = folders, windows, [start(folders, windows, on, folder) for on in (True, False)]
        for name, (folders, windows, processes) in jobs.items():
            mine = {form: by_engine(folder, windows) for form, folder in folders.items()}
            there, own = (answers_of(*p) for p in processes)
            logs = os.environ.get("SLUICE_TEST_LOGS")
            for on, (_, log) in zip(("on", "off"), processes):
                if logs:
                    shutil.copy(log, pathlib.Path(logs) / f"{name}-{on}.log")
            scored = sum(len(w) - 1 for w in windows)
            for form in folders:
                lost = {"error": "vLLM's process ended before"}
                out[name, form] = mine[form], there.get(form, lost), own.get(form, lost), scored
    text = "\n".join(rows(out))
    print("\n" + text)
    if os.environ.get("SLUICE_TEST_REPORT"):
        pathlib.Path(os.environ["SLUICE_TEST_REPORT"]).write_text(text + "\n")
    return out


def perplexity(nll, scored):
    return math.exp(sum(nll) / scored)


def apart(mine, other, scored):
    """Relative difference of the perplexities, and its standard error from the windows."""
    error = len(mine) ** 0.5 * statistics.stdev(o - m for o, m in zip(other, mine)) / scored
    return math.expm1((sum(other) - sum(mine)) / scored), error


def rows(out, engine="vLLM"):
    yield f"| model | experts | Sluice's engine | {engine} with the plug-in | difference | standard error | {engine} alone | difference |"
    yield "|---|---|---|---|---|---|---|---|"
    for (model, form), (mine, there, own, scored) in out.items():
        cells = [model, form, f"{perplexity(mine, scored):.5f}"]
        for answer, columns in ((there, 3), (own, 2)):
            if "error" in answer:
                cells += [answer["error"].replace("|", "/").replace("\n", " ")[:120], *["-"] * (columns - 1)]
            else:
                difference, error = apart(mine, answer["window_nll"], scored)
                cells += [f"{perplexity(answer['window_nll'], scored):.5f}", f"{difference:+.1e}", f"{error:.1e}"][:columns]
        yield "| " + " | ".join(cells) + " |"


@pytest.mark.parametrize("model, form", CASES)
def test_perplexity_is_that_of_the_engine(results, model, form):
    if (model, form) not in results:
        pytest.skip(f"{model} is not in SLUICE_TEST_MODELS")
    mine, there, own, scored = results[model, form]
    assert "error" not in there, f"{there['error']}; the plug-in's log: {there.get('log')}; vLLM alone: {own.get('error', 'runs')}"
    assert there["layers"] > 0 and there["calls"] >= there["layers"], f"the plug-in did not run: {there['log']}"
    assert own.get("layers", 0) == 0 and own.get("calls", 0) == 0
    difference, error = apart(mine, there["window_nll"], scored)
    alone = "error" if "error" in own else f"{apart(mine, own['window_nll'], scored)[0]:+.1e}"
    assert abs(difference) <= max(BAR, ERRORS * error), f"{difference:+.1e} with a standard error of {error:.1e}; vLLM alone: {alone}"
