# SPDX-License-Identifier: Apache-2.0
"""A pytest plugin that lets the servers' tests of SGLang and vLLM run against `sluice serve`: peer_suites.py says how.

Those tests import their own project for three things: to start a server, for the tokenizer, and for what happens inside of
their processes. The first two are given here under the names that the tests use, for the checkpoint in $PEER_MODEL; whatever
else is taken from their packages (or from torch, which is not needed) ends the test as not applicable when it is called.
"""
import contextlib
import importlib.abc
import importlib.machinery
import importlib.util
import json
import os
import pathlib
import re
import signal
import socket
import subprocess
import sys
import time
import types
import unittest
from urllib.parse import urlparse

import pytest

PROGRAM, MODEL, TEMPLATE = (os.environ[f"PEER_{name}"] for name in ("PROGRAM", "MODEL", "TEMPLATE"))
SGLANG = pathlib.Path(os.environ.get("PEER_SGLANG") or "/nowhere")
ABSENT = ("torch", "sglang", "vllm", "triton", "sgl_kernel", "lm_eval", "model_hosting_container_standards", "ray", "PIL",
          "tblib", "sgl_eval", "safetensors", "torchvision", "tensorizer", "compressed_tensors", "accelerate", "soundfile")
START_SECONDS = 60
BY_NAME = pathlib.Path(MODEL).parent / ("by-name-" + pathlib.Path(MODEL).name)

# ---- options that are another word here, or say nothing to a server on the CPU (how many values follow)
RENAMED = {"--max-model-len": "--context-length", "--max-num-seqs": "--max-running-requests", "--seed": "--random-seed",
           "--context-len": "--context-length", "--max-total-token": "--max-total-tokens", "--model-name": "--served-model-name",
           "--max-num-batched-tokens": "--chunked-prefill-size", "--no-enable-prefix-caching": "--disable-radix-cache"}
MEANINGLESS = {"--enforce-eager": 0, "--gpu-memory-utilization": 1, "--device": 1, "--mem-fraction-static": 1, "--dtype": 1,
               "--enable-auto-tool-choice": 0, "--decode-log-interval": 1, "--grammar-backend": 1, "--attention-backend": 1,
               "--disable-overlap-schedule": 0, "--cuda-graph-max-bs": 1, "--cuda-graph-bs": 1, "--disable-cuda-graph": 0,
               "--enable-prefix-caching": 0, "--structured-outputs-config.backend": 1, "--enable-custom-logit-processor": 0,
               "--sampling-backend": 1, "--cuda-graph-max-bs-decode": 1, "--cuda-graph-backend-decode": 1,
               "--cuda-graph-backend-prefill": 1, "--tokenizer-worker-num": 1, "--detokenizer-worker-num": 1, "--tp-size": 1,
               "--tp": 1, "--enable-lora": 0, "--max-loras": 1, "--max-lora-rank": 1, "--max-cpu-loras": 1,
               "--lora-modules": 1, "--trust-remote-code": 0, "--enable-cache-report": 0, "--skip-server-warmup": 0,
               "--enable-return-routed-experts": 0, "--reasoning-config": 1, "--enable-server-load-tracking": 0,
               "--tokenizer-mode": 1, "--config_format": 1, "--load_format": 1, "--config-format": 1,
               "--enable-weight-checker": 0, "--enable-memory-saver": 0, "--schedule-conservativeness": 1,
               "--enable-mixed-chunk": 0, "--log-requests": 0, "--log-requests-level": 1, "--chat-template-content-format": 1,
               "--return-tokens-as-token-ids": 0, "--enable-multi-layer-eagle": 0, "--page-size": 1,
               "--enable-prompt-tokens-details": 0, "--disable-piecewise-cuda-graph": 0, "--generation-config": 1,
               "--quantization": 1, "--sleep-on-idle": 0, "--enable-sleep-mode": 0, "--disable-log-stats": 0,
               "--max-logprobs": 1, "--enable-per-request-metrics": 0, "--enable-force-include-usage": 0,
               "--enable-log-requests": 0, "--max-prefill-tokens": 1, "--default-priority-value": 1, "--enable-tokenizer-info-endpoint": 0,
               "--enable-request-id-headers": 0, "--runner": 1, "--limit-mm-per-prompt": 1, "--api-server-count": 1,
               "--hf-overrides": 1, "--enable-mfu-metrics": 0, "--enable-metrics": 0, "--show-hidden-metrics-for-version": 1}
PARSERS = {"llama3": "hermes", "llama3_json": "hermes", "openai": "gpt-oss"}  # of models that are not served here


def options(words):
    """(those of sluice serve, names that requests use)"""
    out, words, split = [], [str(w) for w in words], []
    for w in words:
        split += w.split("=", 1) if w.startswith("--") and "=" in w else [w]
    names, i = [], 0
    while i < len(split):
        word = split[i].replace("_", "-") if split[i].startswith("--") else split[i]
        word = RENAMED.get(word, word)
        i += 1
        if out and out[-1] == "--tool-call-parser":
            word = PARSERS.get(word, word)
        if word in MEANINGLESS:
            while MEANINGLESS[word] and i < len(split) and not split[i].startswith("--"):
                i += 1
            continue
        if word == "--served-model-name":
            while i < len(split) and not split[i].startswith("--"):
                names.append(split[i])
                i += 1
            continue
        if word == "--chat-template" and i < len(split) and not pathlib.Path(split[i]).is_file():
            i += 1
            continue
        if word == "--model-path":
            i += 1
            continue
        if word == "--context-length":  # the last one counts
            while word in out:
                at = out.index(word)
                del out[at:at + 2]
        out.append(word)
    return out, names


def command(model, words, host, port):
    words, names = options(words)
    if "--metrics-prefix" not in words:
        words += ["--metrics-prefix", "vllm" if os.environ.get("PEER_WHO") == "vLLM" else "sglang"]
    if "--context-length" not in words:
        words += ["--context-length", "131072"]
    if "--random-seed" not in words:  # else one run in some has an answer that is empty by chance
        words += ["--random-seed", "1"]
    if "--chat-template" not in words:
        words += ["--chat-template", TEMPLATE]
    return [PROGRAM, "serve", "--model-path", by_name(model), "--host", host, "--port", str(port), "--dtype", "float32",
            "--served-model-name", *(names or [model]), "--allow-weight-update", "--weights-folder", str(BY_NAME.parent), *words]


def by_name(model):
    """The checkpoint under the name that a test has for its model, as a path from BY_NAME."""
    if pathlib.Path(model).is_absolute():
        return model
    for name, folder in ((model, MODEL), (model.removesuffix("-Instruct"), os.environ["PEER_OTHER_MODEL"])):
        link = BY_NAME / name
        link.parent.mkdir(parents=True, exist_ok=True)
        with contextlib.suppress(FileExistsError):
            link.symlink_to(folder)
    return model


def start(model, words, host, port, env=None, files=None):
    """The process of a server that answers; skips when its options are refused, with the reason."""
    env = {**os.environ, **(env or {})}
    words = [str(w) for w in words]
    if "PEER_AT_ONCE" in os.environ:
        for name in ("--max-running-requests", "--max-num-seqs"):
            if name in words:
                at = words.index(name)
                del words[at:at + 2]
        words += ["--max-running-requests", os.environ["PEER_AT_ONCE"]]
    for variable, option in (("SGLANG_REQ_WAITING_TIMEOUT", "--queue-timeout"), ("SGLANG_REQ_RUNNING_TIMEOUT", "--request-timeout")):
        if variable in env:
            words += [option, env[variable]]
    clean = {k: v for k, v in env.items() if not k.startswith("SLUICE_")}
    log = pathlib.Path(os.environ["PEER_LOG"])
    words = command(model, words, host, port)
    for _ in range(50):  # the port of the server before is free at once, its answers' connections may not be
        with log.open("a") as file, contextlib.ExitStack() as stack:
            file.write(" ".join(words) + "\n")
            file.flush()
            at = log.stat().st_size
            out, err = files or (file, file)
            process = subprocess.Popen(words, env=clean, stdout=out, stderr=err, cwd=BY_NAME, start_new_session=True)
        end = time.monotonic() + START_SECONDS
        while time.monotonic() < end:
            if process.poll() is not None:
                break
            with contextlib.suppress(OSError):
                with socket.create_connection((host, port), timeout=1) as s:
                    s.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
                    if b" 200 " in s.recv(4096):
                        return process
            time.sleep(0.05)
        said = log.read_text()[at:].strip()
        if "in use" not in said:
            break
        time.sleep(0.2)
    pytest.skip(f"the server does not start: {refusal(said)}", allow_module_level=True)


def refusal(said):
    lines = [line for line in said.splitlines() if not line.startswith(("Run with --help", "listening on"))]
    return lines[-1] if lines else "no word"


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


# ---- what is not there

class Absent:
    """Anything of their packages: may be imported, named in annotations and inherited from, not called."""

    def __init__(self, name):
        self.__dict__["_name"] = name

    def __getattr__(self, name):
        if name.startswith("__") and name.endswith("__"):
            raise AttributeError(name)
        return Absent(f"{self._name}.{name}")

    def __call__(self, *_, **__):
        pytest.skip(f"uses {self._name}", allow_module_level=True)

    def __mro_entries__(self, bases):
        return (AbsentBase,)

    def __add__(self, _):
        self()

    __getitem__ = __or__ = __ror__ = lambda self, _: self
    __radd__ = __sub__ = __mul__ = __lt__ = __gt__ = __add__
    __hash__ = object.__hash__


class AbsentBaseKind(type):
    def __getattr__(cls, name):
        if name.startswith("__"):
            raise AttributeError(name)
        pytest.skip(f"uses {name} of a base class that is not there")


class AbsentBase(metaclass=AbsentBaseKind):
    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        pytest.skip(f"uses {name} of a base class that is not there")


class Module(types.ModuleType):
    def __getattr__(self, name):
        if name.startswith("__") and name.endswith("__"):
            raise AttributeError(name)
        return Absent(f"{self.__name__}.{name}")


class Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] not in ABSENT:
            return None
        if name.startswith(("sglang.test.kits.", "sglang.test.server_fixtures.")):  # parts of the tests themselves
            file = SGLANG / "python" / (name.replace(".", "/") + ".py")
            if file.is_file():
                return importlib.util.spec_from_file_location(name, file)
        return importlib.machinery.ModuleSpec(name, self, is_package=True)

    def create_module(self, spec):
        module = Module(spec.name)
        module.__dict__.update(STAND_INS.get(spec.name, {}))
        return module

    def exec_module(self, module):
        module.__path__ = []


# ---- what is there

def tokenizer(*_, **__):
    from transformers import PreTrainedTokenizerFast
    return PreTrainedTokenizerFast.from_pretrained(MODEL)


def kill(pid, *_, **__):
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGTERM)
    end = time.monotonic() + 20
    while time.monotonic() < end:
        with contextlib.suppress(ChildProcessError):
            if os.waitpid(pid, os.WNOHANG)[0] == 0:
                time.sleep(0.02)
                continue
        return
    os.kill(pid, signal.SIGKILL)


PORT = free_port()


class ServerTestCase(unittest.TestCase):
    """Their base class of tests retries; here a failure is one."""
    process = None

    @classmethod
    def tearDownClass(cls):
        if cls.process is not None and hasattr(cls.process, "pid"):
            kill(cls.process.pid)


def launch(model, base_url, timeout=None, api_key=None, other_args=(), env=None, return_stdout_stderr=None, **_):
    url = urlparse(base_url)
    words = [*(other_args or ()), *(["--api-key", api_key] if api_key else [])]
    return start(str(model), words, url.hostname, url.port, env, return_stdout_stderr)


class TestModule(Module):
    """sglang.test.test_utils: every model is the one that is given, by the name that stands in some tests."""

    def __getattr__(self, name):
        if re.fullmatch(r"DEFAULT_\w*MODEL\w*", name):
            return "meta-llama/Llama-3.1-8B-Instruct"
        return super().__getattr__(name)


class Variable:
    def __init__(self, name):
        self.name = name

    def get(self):
        return None

    def set(self, value):
        os.environ[self.name] = str(value)

    @contextlib.contextmanager
    def override(self, value):
        before = os.environ.get(self.name)
        os.environ[self.name] = str(value)
        try:
            yield
        finally:
            os.environ.pop(self.name, None)
            if before is not None:
                os.environ[self.name] = before


class Variables:
    def __getattr__(self, name):
        return Variable(name)


class Platform:
    def __getattr__(self, name):
        return lambda *_, **__: False


class Hub:
    def snapshot_download(self, *_, **__):
        return "an-adapter"

    hf_hub_download = snapshot_download


class RemoteServer:
    DUMMY_API_KEY = "token-abc123"
    show_hidden_metrics = False

    def __init__(self, model, vllm_serve_args=(), *, env_dict=None, seed=None, auto_port=True, max_wait_seconds=None,
                 override_hf_configs=None, **_):
        words, self.host, self.port = list(vllm_serve_args or ()), "127.0.0.1", None
        if "--port" in words:
            at = words.index("--port")
            self.port = int(words[at + 1])
            del words[at:at + 2]
        if "--host" in words:
            at = words.index("--host")
            del words[at:at + 2]
        self.port = self.port or free_port()
        self.model, self.served_model_name = model, model
        self.proc = start(str(model), [*words, "--unknown-fields", "refuse"], self.host, self.port, env_dict)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        kill(self.proc.pid)

    def _get_process_termination_timeout(self, *_, **__):
        return 20

    @property
    def url_root(self):
        return f"http://{self.host}:{self.port}"

    def url_for(self, *parts):
        return "/".join([self.url_root, *(p.strip("/") for p in parts if p)])

    def get_client(self, **more):
        import openai
        return openai.OpenAI(base_url=self.url_for("v1"), api_key=self.DUMMY_API_KEY, **{"max_retries": 0, "timeout": 60, **more})

    def get_async_client(self, **more):
        import openai
        return openai.AsyncOpenAI(base_url=self.url_for("v1"), api_key=self.DUMMY_API_KEY,
                                  **{"max_retries": 0, "timeout": 60, **more})

    def get_client_anthropic(self, **more):
        import anthropic
        return anthropic.Anthropic(base_url=self.url_for(), api_key=self.DUMMY_API_KEY, **{"max_retries": 0, "timeout": 60, **more})

    def get_async_client_anthropic(self, **more):
        import anthropic
        return anthropic.AsyncAnthropic(base_url=self.url_for(), api_key=self.DUMMY_API_KEY,
                                        **{"max_retries": 0, "timeout": 60, **more})


def routed_experts(answer):
    import base64
    import numpy
    return numpy.frombuffer(base64.b64decode(answer["meta_info"]["routed_experts"]), dtype=numpy.int32)


def nothing(*_, **__):
    return None


URL = f"http://127.0.0.1:{PORT}"
ENDS = {"kill_process_tree": kill, "terminate_process": lambda p, *_: kill(p.pid), "is_in_ci": lambda: True,
        "is_in_amd_ci": lambda: False, "is_cuda": lambda: False, "is_npu": lambda: False, "is_hip": lambda: False,
        "get_device": lambda *_: "cpu", "get_open_port": free_port}
STAND_INS = {
    "sglang.test.test_utils": {"DEFAULT_URL_FOR_TEST": URL, "DEFAULT_TIMEOUT_FOR_SERVER_LAUNCH": START_SECONDS,
                               "STDERR_FILENAME": "/tmp/peer_stderr.txt", "STDOUT_FILENAME": "/tmp/peer_stdout.txt",
                               "CustomTestCase": ServerTestCase, "popen_launch_server": launch,
                               "find_available_port": lambda *_: free_port(), "write_github_step_summary": nothing,
                               "dump_metric": nothing, "DEFAULT_PORT_FOR_SRT_TEST_RUNNER": PORT, **ENDS},
    "sglang.test.ci.ci_register": {name: nothing for name in (
        "register_cuda_ci", "register_amd_ci", "register_cpu_ci", "register_npu_ci", "register_xpu_ci")},
    "sglang.srt.utils": ENDS, "sglang.srt.utils.common": ENDS, "sglang.utils": ENDS,
    "sglang.srt.utils.hf_transformers_utils": {"get_tokenizer": tokenizer},
    "sglang.srt.state_capturer.routed_experts": {"extract_routed_experts_from_meta_info": routed_experts},
    "sglang.srt.environ": {"envs": Variables()},
    "vllm.platforms": {"current_platform": Platform()},
    "vllm.tokenizers": {"get_tokenizer": tokenizer},
    "vllm.transformers_utils.repo_utils": {"hf_api": Hub},
    "vllm.utils.network_utils": ENDS,
    "vllm.version": {"__version__": subprocess.check_output([PROGRAM, "--version"], text=True).split()[1],
                     "_prev_minor_version": lambda: "0.0"},
    "vllm._aiter_ops": {"is_aiter_found_and_supported": lambda: False},
    "torch": {"float32": "float32", "bfloat16": "bfloat16", "float16": "float16"},
    "torch.cuda": {"is_available": lambda: False, "device_count": lambda: 0, "empty_cache": nothing},
}


def install():
    sys.meta_path.insert(0, Finder())
    utils = TestModule("sglang.test.test_utils")
    utils.__dict__.update(STAND_INS["sglang.test.test_utils"])
    sys.modules["sglang.test.test_utils"] = utils
    import torch.cuda
    torch.cuda = sys.modules["torch.cuda"]
    import vllm.version
    vllm.version = sys.modules["vllm.version"]
    remote = Module("tests.utils")
    checkout = pathlib.Path(os.environ.get("PEER_VLLM") or "/nowhere")
    remote.__dict__.update({"RemoteOpenAIServer": RemoteServer, "ROCM_EXTRA_ARGS": [], "ROCM_ENV_OVERRIDES": {}, "VLLM_PATH": checkout,
                            "large_gpu_mark": lambda **_: pytest.mark.skip(reason="needs a large GPU"),
                            "multi_gpu_test": lambda **_: pytest.mark.skip(reason="needs GPUs"),
                            "create_new_process_for_each_test": lambda *_: (lambda f: f)})
    sys.modules["tests.utils"] = remote
    sys.modules["tests.conftest"] = Module("tests.conftest")  # of images and GPUs
    import transformers
    for name in ("AutoTokenizer", "PreTrainedTokenizerFast"):
        kind = getattr(transformers, name)
        if name == "AutoTokenizer":
            kind.from_pretrained = staticmethod(tokenizer)
    os.environ.setdefault("HF_HUB_OFFLINE", "1")


install()
results = {}


def pytest_runtest_logreport(report):
    """One line for each test: the worst of its phases."""
    now = results.setdefault(report.nodeid, {"outcome": "passed", "why": "", "seconds": 0.0})
    now["seconds"] += report.duration
    if report.outcome == "passed":
        return
    why = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(getattr(report.longrepr, "reprcrash", None) or report.longrepr)
    if report.outcome == "failed" and ("lora" in report.nodeid.lower()):
        report.outcome, why = "skipped", "LoRA adapters"
    if now["outcome"] != "failed":
        now.update(outcome=report.outcome, why=why.strip()[-1500:])


def pytest_collectreport(report):
    if report.outcome != "passed" and report.nodeid.endswith(".py"):
        why = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
        results[report.nodeid] = {"outcome": report.outcome, "why": why.strip()[-1500:], "seconds": 0.0}


def pytest_sessionfinish():
    with open(os.environ["PEER_RESULTS"], "a") as file:
        for test, result in results.items():
            file.write(json.dumps({"test": test, **result}) + "\n")
