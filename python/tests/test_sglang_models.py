# SPDX-License-Identifier: Apache-2.0
"""A trained checkpoint in SGLang on a Hopper GPU, its experts by the plug-in: the perplexity of Sluice's own engine.

As test_vllm_models.py, whose measures it has. All of SGLang's engines run at once, one for each format and side, and share the
GPU. SLUICE_TEST_REPORT names a file for the table of all numbers.
"""
import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile

import pytest

from conftest import hopper, installed
from sglang_logprobs import MARK
from test_vllm_models import BAR, ERRORS, MODELS, PROGRAM, apart, by_engine, quantised, rows, windows_of

MODEL = "tiny-qwen3-moe"
FORMATS = ["bf16", "fp8", "mxfp8", "nvfp4"]
# What an update from tensors changes in a running engine, by format: the names' end.
HALVED = {"bf16": "down_proj.weight"}
OWN = {"nvfp4": "marlin"}  # SGLang's own backend of a format that it does not choose by itself on Hopper
FIRST_PORT, PORTS = 31000, 100

pytestmark = [
    hopper,
    pytest.mark.skipif(not installed("sglang"), reason="SGLang is not installed"),
    pytest.mark.skipif(not MODELS, reason="SLUICE_TEST_MODELS does not name the trained checkpoints"),
    pytest.mark.skipif(not PROGRAM, reason="no sluice on the path, and SLUICE_PROGRAM does not name it"),
]


def untied(model, folder):
    """The checkpoint with a head of its own: SGLang's Qwen3-MoE reads none from the embedding."""
    from safetensors import safe_open
    from safetensors.torch import save_file
    out = folder / model.name
    out.mkdir()
    for file in model.iterdir():
        if file.name not in ("golden.safetensors", "config.json", "model.safetensors.index.json"):
            (out / file.name).symlink_to(file.resolve())
    index = json.loads((model / "model.safetensors.index.json").read_text())
    name = "model.embed_tokens.weight"
    with safe_open(model / index["weight_map"][name], "pt") as tensors:
        save_file({"lm_head.weight": tensors.get_tensor(name).clone()}, out / "head.safetensors", {"format": "pt"})
    index["weight_map"]["lm_head.weight"] = "head.safetensors"
    (out / "model.safetensors.index.json").write_text(json.dumps(index))
    config = json.loads((model / "config.json").read_text())
    (out / "config.json").write_text(json.dumps({**config, "tie_word_embeddings": False}))
    return out


def start(folder, windows, backend, port, logs, name, halved):
    job, log = logs / f"{name}.json", logs / f"{name}.log"
    job.write_text(json.dumps({"folder": str(folder), "windows": windows, "backend": backend, "port": port, "halved": halved}))
    environment = {**os.environ, **({"SLUICE_KEEP_WEIGHTS": "1"} if halved else {}),
                   "HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1", "PYTHONUNBUFFERED": "1"}
    script = pathlib.Path(__file__).with_name("sglang_logprobs.py")
    return subprocess.Popen([sys.executable, str(script), str(job)], stdout=log.open("w"), stderr=subprocess.STDOUT, env=environment), log


def answer_of(process, log):
    """{"window_nll", "layers"}, after an update {"updated", "updated_nll"} too, or {"error"}"""
    process.wait()
    out = {"layers": 0}
    for line in log.read_text(errors="replace").splitlines():
        if MARK in line:
            out |= json.loads(line[line.index(MARK) + len(MARK):])
    if "window_nll" not in out:
        errors = [line for line in log.read_text(errors="replace").splitlines() if "Error" in line]
        out["error"] = (errors or [f"exit code {process.returncode}"])[-1][:200]
    return out


@pytest.fixture(scope="module")
def results():
    """{format: (engine's, plug-in's, SGLang's own answer, tokens that were scored)}"""
    model = pathlib.Path(MODELS) / MODEL
    if not model.is_dir():
        pytest.skip(f"{MODEL} is not in SLUICE_TEST_MODELS")
    out = {}
    with tempfile.TemporaryDirectory() as scratch:
        folder = pathlib.Path(scratch)
        model = untied(model, folder)
        windows = windows_of(model)
        jobs = {}
        for form in FORMATS:
            checkpoint = quantised(model, form, folder)
            backends = {"on": "sluice", "off": OWN.get(form, "auto")}
            jobs[form] = checkpoint, [start(checkpoint, windows, backend, FIRST_PORT + PORTS * (2 * len(jobs) + i), folder,
                                            f"sglang-{form}-{side}", HALVED.get(form)) for i, (side, backend) in enumerate(backends.items())]
        for form, (checkpoint, processes) in jobs.items():
            mine = by_engine(checkpoint, windows)
            there, own = (answer_of(*p) for p in processes)
            if os.environ.get("SLUICE_TEST_LOGS"):
                for _, log in processes:
                    shutil.copy(log, os.environ["SLUICE_TEST_LOGS"])
            out[form] = mine, there, own, sum(len(w) - 1 for w in windows)
    text = "\n".join(rows({(MODEL, form): result for form, result in out.items()}, "SGLang"))
    print("\n" + text)
    if os.environ.get("SLUICE_TEST_REPORT"):
        pathlib.Path(os.environ["SLUICE_TEST_REPORT"]).write_text(text + "\n")
    return out


@pytest.mark.parametrize("form", FORMATS)
def test_perplexity_is_that_of_the_engine(results, form):
    mine, there, own, scored = results[form]
    assert "error" not in there, f"{there['error']}; SGLang alone: {own.get('error', 'runs')}"
    assert there["layers"] > 0 and own["layers"] == 0, (there["layers"], own["layers"])
    difference, error = apart(mine, there["window_nll"], scored)
    alone = "error" if "error" in own else f"{apart(mine, own['window_nll'], scored)[0]:+.1e}"
    assert abs(difference) <= max(BAR, ERRORS * error), f"{difference:+.1e} with a standard error of {error:.1e}; SGLang alone: {alone}"


@pytest.mark.parametrize("form", HALVED)
def test_an_update_from_tensors_is_that_of_sglangs_own_experts(results, form):
    """SGLang's loaders write, and the plug-in prepares again what they wrote: the same perplexity as without the plug-in."""
    _, there, own, scored = results[form]
    assert there.get("updated") and own.get("updated"), (there.get("message", there.get("error")), own.get("message", own.get("error")))
    moved = apart(there["window_nll"], there["updated_nll"], scored)[0]
    assert abs(moved) > 100 * BAR, f"halving the experts' second matrices moved the perplexity by {moved:+.1e}"
    difference, error = apart(own["updated_nll"], there["updated_nll"], scored)
    assert abs(difference) <= max(BAR, ERRORS * error), f"{difference:+.1e} with a standard error of {error:.1e}"
