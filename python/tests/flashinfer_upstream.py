# SPDX-License-Identifier: Apache-2.0
"""Runs FlashInfer's own test files against sluice_moe.flashinfer on a GPU.

usage: flashinfer_upstream.py CHECKOUT [--jobs N] [--seconds S] [--seed N] [--verbose] [FILE[::TEST]...]

CHECKOUT is a folder of FlashInfer's repository with tests/ in it; nothing of it is copied here. Two things are changed, and
no test: `import flashinfer` finds sluice_moe.flashinfer, and the architecture that tests ask for is Blackwell's, 10.0. What
sluice_moe.flashinfer does not have is a stand-in that refuses when it is called. Helpers by which the tests check results
(dequantisers, orders of rows) are this file's; enumerations and settings that are plain Python are the checkout's.

The cases run in random order by N processes until the time is over. A case is `passed`, `failed`, `refused` (a call raised
a sentence of sluice_moe's) or `skipped` (the test itself says so). Prints the counts of each file, each refusal with its
count, and each failure.
"""
import argparse
import collections
import contextlib
import importlib.abc
import importlib.machinery
import importlib.util
import json
import os
import pathlib
import random
import re
import subprocess
import sys
import time
import types

FILES = [
    "tests/moe/test_trtllm_gen_fused_moe.py",
    "tests/moe/test_trtllm_gen_fused_moe_routing_renormalize_bf16.py",
    "tests/moe/test_trtllm_gen_fused_moe_routing_renormalize_fp4.py",
    "tests/moe/test_trtllm_gen_fused_moe_routing_renormalize_fp8.py",
    "tests/moe/test_trtllm_gen_routed_fused_moe.py",
    "tests/moe/test_trtllm_gen_per_token_moe.py",
    "tests/moe/test_trtllm_cutlass_fused_moe.py",
    "tests/gemm/test_mm_fp4.py",
    "tests/gemm/test_mm_mxfp8.py",
    "tests/utils/test_fp4_quantize.py",
    "tests/utils/test_fp8_quantize.py",
]
PATIENCE = 20  # seconds for a case to end
# Plain Python of the checkout that tests configure themselves with.
OWN_MODULES = ("flashinfer.quantization.nvfp4_quantization_utils", "flashinfer.tllm_enums")


def load_helpers():
    """What tests import beside the functions under test, written from their documented meaning."""
    import torch

    import sluice_moe.flashinfer as ours
    from sluice_moe.flashinfer import _values
    from sluice_moe.flashinfer._layouts import linear_scales, shuffled_from

    def linear(scales, rows, groups, swizzled, layout="128x4"):
        flat = scales.view(torch.uint8).reshape(-1)
        return linear_scales(flat, rows, groups, layout) if swizzled else flat.reshape(rows, groups)

    def e2m1_and_ufp8sf_scale_to_float(codes, scales, global_scale=None, sf_vec_size=16, ufp8_type=1,
                                       is_sf_swizzled_layout=True, is_sf_8x4_layout=False):
        codes = codes.view(torch.uint8)
        values = _values.e2m1(codes)
        s = linear(scales.to(codes.device), codes.shape[0], values.shape[1] // sf_vec_size, is_sf_swizzled_layout,
                   "8x4" if is_sf_8x4_layout else "128x4")
        out = _values.by_groups(values, _values.e4m3(s) if ufp8_type else _values.e8m0(s))
        return out if global_scale is None else out * global_scale.to(out.device)

    def mxfp4_dequantize(codes, scales, sfLayout=ours.SfLayout.layout_128x4):
        return e2m1_and_ufp8sf_scale_to_float(codes.cpu(), scales.cpu(), None, 32, 0,
                                              sfLayout != ours.SfLayout.layout_linear, sfLayout == ours.SfLayout.layout_8x4)

    def mxfp4_dequantize_host(codes, scales, group_size=32):
        return e2m1_and_ufp8sf_scale_to_float(codes, scales, None, group_size, 0, False)

    def mxfp8_dequantize_host(codes, scales, is_sf_swizzled_layout=True, sf_swizzle_layout=None):
        if sf_swizzle_layout is not None:
            is_sf_swizzled_layout = sf_swizzle_layout != ours.SfLayout.layout_linear
        s = linear(scales, codes.shape[0], codes.shape[1] // 32, is_sf_swizzled_layout)
        return _values.by_groups(_values.e4m3(codes.view(torch.uint8)), _values.e8m0(s))

    def get_w2_permute_indices_with_cache(cache, weight, epilogue_tile_m, num_elts_per_sf=None):
        return torch.tensor(shuffled_from(weight.shape[0], epilogue_tile_m), device=weight.device)

    def _maybe_get_cached_w3_w1_permute_indices(cache, weight, epilogue_tile_m, num_elts_per_sf=None,
                                                is_gated_act_gemm=True):
        rows = torch.arange(weight.shape[0])
        if is_gated_act_gemm:
            rows = rows.reshape(2, -1).T.reshape(-1)
        return rows[torch.tensor(shuffled_from(weight.shape[0], epilogue_tile_m))].to(weight.device)

    def flashinfer_api(function=None, **named):  # a decorator that logs
        return function if function is not None else lambda f: f

    @contextlib.contextmanager
    def autotune(*arguments, **named):
        yield

    class Product:  # a function that says which backends it has
        def __init__(self, function):
            self.function = function

        def __call__(self, *arguments, **named):
            return self.function(*arguments, **named)

        @staticmethod
        def is_backend_supported(backend, capability=None):
            return backend in ("auto", "cutlass", "cudnn")

        is_compute_capability_supported = staticmethod(lambda capability: True)

    class LibraryError(Exception):
        pass

    return {
        **{name: value for name, value in locals().items() if callable(value) and name not in ("Product", "linear", "linear_scales",
                                                                                               "shuffled_from")},
        "mm_fp4": Product(ours.mm_fp4), "mm_mxfp8": Product(ours.mm_mxfp8),
        "get_compute_capability": lambda device=None: (10, 0), "is_sm100a_supported": lambda device=None: True,
        "is_sm90a_supported": lambda device=None: False, "is_sm110a_supported": lambda device=None: False,
        "is_sm12x_supported": lambda device=None: False, "device_support_pdl": lambda device=None: False,
        "version_at_least": lambda *versions: True, "round_up": lambda x, y: -(-x // y) * y,
        "is_cute_dsl_available": lambda: False, "is_cuda_tile_available": lambda: False,
        "CUDNN_FP4_MXFP4_SM120_CUDNN_VERSION_ERROR": "-",
    }


class Missing:
    """Stands for what sluice_moe.flashinfer does not have; refuses when it is used."""

    def __init__(self, name):
        self.name = name

    def __call__(self, *arguments, **named):
        import sluice_moe
        raise sluice_moe.Unsupported(f"{self.name} is called; accepted: what sluice_moe.flashinfer's docstring lists")

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return Missing(f"{self.name}.{name}")

    def __iter__(self):
        return iter(())


class Module(types.ModuleType):
    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        import sluice_moe.flashinfer as ours
        if name in ("is_gated_activation", "ActivationType", "RoutingMethodType"):  # wherever it is imported from
            return getattr(importlib.import_module("flashinfer.tllm_enums"), name)
        if name in Finder.helpers:
            return Finder.helpers[name]
        if hasattr(ours, name) and not isinstance(getattr(ours, name), types.ModuleType):
            return getattr(ours, name)
        if name.endswith("Error"):
            return type(name, (Exception,), {})
        return Missing(f"{self.__name__}.{name}".removeprefix("flashinfer."))


class Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    helpers: dict = {}

    def __init__(self, checkout):
        self.checkout = checkout

    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] != "flashinfer":
            return None
        if name in OWN_MODULES:
            file = self.checkout / (name.replace(".", "/") + ".py")
            return importlib.util.spec_from_file_location(name, file)
        return importlib.machinery.ModuleSpec(name, self, is_package=True)

    def create_module(self, spec):
        return Module(spec.name)

    def exec_module(self, module):
        pass


class Plugin:
    """Counts outcomes, and ends the run when its time is over."""

    def __init__(self, share, shares, seed, until, file):
        self.share, self.shares, self.seed, self.until, self.file = share, shares, seed, until, file

    def write(self, *line):
        self.file.write(json.dumps(line) + "\n")
        self.file.flush()

    def pytest_configure(self, config):
        for mark in ("long_running", "solo"):
            config.addinivalue_line("markers", f"{mark}: FlashInfer's")

    def pytest_collection_modifyitems(self, items):
        random.Random(self.seed).shuffle(items)
        items[:] = items[self.share::self.shares]
        self.write(len(items))

    def pytest_runtest_makereport(self, item, call):
        if call.when == "teardown" or (call.when == "setup" and call.excinfo is None):
            return
        import pytest

        import sluice_moe
        outcome, text = "passed", ""
        if call.excinfo is not None:
            error = call.excinfo.value
            text = f"{type(error).__name__}: {error}"
            chain = error
            while chain is not None and not isinstance(chain, sluice_moe.Unsupported):
                chain = chain.__cause__
            inside = any("sluice_moe" in str(entry.path) for entry in call.excinfo.traceback)
            if isinstance(error, pytest.skip.Exception):
                outcome = "skipped"
            elif chain is not None:
                outcome, text = "refused", str(chain)
            elif inside and isinstance(error, (TypeError, ValueError, sluice_moe.Error)) and "accepted" in text:
                outcome, text = "refused", str(error)
            else:
                outcome = "failed"
        self.write(item.nodeid, outcome, text.splitlines()[0][:400] if text else "")

    def pytest_runtest_logfinish(self, nodeid, location):
        import pytest
        if time.monotonic() > self.until:
            pytest.exit("the time is over", 0)


def work(options):
    import pytest
    import torch
    checkout = pathlib.Path(options.checkout).resolve()
    sys.path.insert(0, str(checkout))
    sys.meta_path.insert(0, Finder(checkout))
    Finder.helpers = load_helpers()
    torch.cuda.get_device_capability = lambda device=None: (10, 0)
    os.chdir(checkout)
    plugin = Plugin(options.share, options.jobs, options.seed, time.monotonic() + options.seconds, open(options.result, "a"))
    code = pytest.main(["-q", "--noconftest", "-p", "no:cacheprovider", "-c", os.devnull, "--rootdir", str(checkout), "--tb=short",
                        "-W", "ignore", *(["-x"] if options.verbose else ["--no-header", "--show-capture=no"]), *options.files],
                       plugins=[plugin])
    plugin.write("end", int(code))


def main():
    parser = argparse.ArgumentParser(usage=__doc__, add_help=False)
    parser.add_argument("checkout")
    parser.add_argument("files", nargs="*", default=FILES)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=1e9)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().getrandbits(16))
    parser.add_argument("--verbose", action="store_true")
    parser.add_argument("--share", type=int, default=-1)
    parser.add_argument("--result", default="")
    options = parser.parse_intermixed_args()
    if options.share >= 0:
        work(options)
        return 0
    import tempfile
    with tempfile.TemporaryDirectory() as folder:
        jobs = []
        for share in range(options.jobs):
            log = open(f"{folder}/{share}.log", "w")
            jobs.append(subprocess.Popen([sys.executable, __file__, options.checkout, *options.files, "--jobs", str(options.jobs),
                                          "--seconds", str(options.seconds), "--seed", str(options.seed), "--share", str(share),
                                          "--result", f"{folder}/{share}.json", *(["--verbose"] if options.verbose else [])],
                                         stdout=None if options.verbose else log, stderr=subprocess.STDOUT))
        results, left, broken = [], 0, []
        until = time.monotonic() + options.seconds + PATIENCE
        for share, job in enumerate(jobs):
            try:
                job.wait(max(0, until - time.monotonic()))
            except subprocess.TimeoutExpired:  # within a case
                job.kill()
            file = pathlib.Path(folder, f"{share}.json")
            lines = [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []
            ran = [line for line in lines if len(line) == 3]
            results += ran
            left += sum(line[0] for line in lines if len(line) == 1) - len(ran)
            if job.returncode not in (0, -9) or (lines and lines[-1][0] == "end" and lines[-1][1] not in (0, 1)):
                broken.append(pathlib.Path(folder, f"{share}.log").read_text()[-1500:])
    return report(options, results, left, broken)


def report(options, results, left, broken):
    kinds = ("passed", "failed", "refused", "skipped")
    table = collections.defaultdict(collections.Counter)
    refusals, failures = collections.Counter(), []
    for name, outcome, text in results:
        table[name.split("::")[0]][outcome] += 1
        if outcome == "refused":
            refusals[re.sub(r"\d+", "N", text)[:200]] += 1
        elif outcome == "failed":
            failures.append(f"{name}: {text}")
    print(f"seed {options.seed}; {left} cases were not reached")
    print("| file | " + " | ".join(kinds) + " |\n|---|" + "---|" * len(kinds))
    for file in sorted(table):
        print(f"| {pathlib.Path(file).name} | " + " | ".join(str(table[file][k]) for k in kinds) + " |")
    print("\nrefused:")
    for text, count in refusals.most_common():
        print(f"  {count:5} {text}")
    print("\nfailed:")
    for text in sorted(failures)[:60]:
        print("  " + text)
    for text in broken:
        print("a process broke off:\n" + text)
    return int(bool(failures or broken))


if __name__ == "__main__":
    sys.exit(main())
