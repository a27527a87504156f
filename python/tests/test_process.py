# SPDX-License-Identifier: Apache-2.0
"""What a process may do to the library: import it, fork, end, interrupt it, run two interpreters, have no GPU."""
import os
import pathlib
import re
import signal
import subprocess
import sys
import textwrap
import time

import pytest

import sluice_moe
from conftest import SOURCE
from sluice_moe._arguments import is_set
from sluice_moe import _c_api, _library

MODEL = SOURCE / "models" / "tiny-nemotron-h"
LAYER = """
    import numpy as np, sluice_moe
    SPEC = "experts=2 top_k=1 hidden=32 inter=32 dtype=float32"
    def weights(): return sluice_moe.MoeWeights(*(np.full((2, 32, 32), 0x3F80, np.uint16) for _ in range(3)))
    X, L = np.ones((3, 32), np.float32), np.ones((3, 2), np.float32)
    def layer(): return sluice_moe.FusedMoE(SPEC, weights(), threads=2)
"""


def python(code, **options):
    result = subprocess.run([sys.executable, "-c", textwrap.dedent(LAYER) + textwrap.dedent(code)], text=True,
                            capture_output=True, timeout=100, **options)
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout


def test_import_is_cheap_and_loads_nothing():
    code = """
        import sys, time
        before = set(sys.modules)
        began = time.process_time()  # of the processor: a busy machine is no fault of the package
        import sluice_moe
        took = time.process_time() - began
        maps = open("/proc/self/maps").read()
        print(took, "libsluice" in maps, "libcuda" in maps, "numpy" in sys.modules, "torch" in sys.modules)
    """
    runs = [subprocess.run([sys.executable, "-c", textwrap.dedent(code)], text=True, capture_output=True,
                           check=True).stdout.split() for _ in range(5)]
    assert min(float(run[0]) for run in runs) < 0.1
    assert {tuple(run[1:]) for run in runs} == {("False",) * 4}


def test_every_name_is_there_and_documented():
    for name in sluice_moe.__all__:
        value = getattr(sluice_moe, name)
        assert isinstance(value, str) or value.__doc__, name
    with pytest.raises(AttributeError, match="no attribute 'abacus'"):
        sluice_moe.abacus
    assert re.fullmatch(r"0\.1\.\d+", sluice_moe.library_version())
    assert (pathlib.Path(sluice_moe.__file__).parent / "py.typed").exists()


def test_a_missing_library_says_so(tmp_path):
    for name, content in (("nowhere.so", None), ("broken.so", b"\x7fELF")):
        if content:
            (tmp_path / name).write_bytes(content)
        out = python("""
            try: layer()
            except sluice_moe.LibraryNotFound as e: print(e)
        """, env={**os.environ, "SLUICE_LIBRARY": str(tmp_path / name)})
        assert name in out and "SLUICE_LIBRARY" in out


def test_structs_are_those_of_the_header():
    headers = sorted((SOURCE / "include" / "sluice" / "c").glob("*.h"))
    if not headers:
        pytest.skip("the source tree is not here")
    text = re.sub(r"/\*.*?\*/", "", "".join(h.read_text() for h in headers), flags=re.S)
    structs = {name: [field.rsplit("*", 1)[-1].split()[-1] for part in re.findall(r"([^;{}]+);", body)
                      for field in part.replace("\n", " ").split(",")]
               for body, name in re.findall(r"typedef struct \w+ \{(.*?)\} (\w+);", text, flags=re.S)}
    ours = {t for t in vars(_c_api).values() if isinstance(t, type) and issubclass(t, _c_api.ctypes.Structure)
            and getattr(t, "_fields_", None)}
    names = {"sluice_" + re.sub(r"(?<!^)(?=[A-Z])", "_", t.__name__).lower(): t for t in ours}
    assert len(names) == len(ours) >= 20
    for name, struct in names.items():
        assert [field for field, *_ in struct._fields_] == structs[name], name
    functions = set(re.findall(r"\b(sluice_\w+)\(", text))
    assert {*_c_api.STATUS, *_c_api.NOTHING} <= functions
    # Sizes, where a C compiler says them: what C calls int, pointer and double is the same as ctypes'.
    status = {name for name in functions if name in _c_api.STATUS}
    for name in status:
        declared = re.search(rf"\b{name}\((.*?)\);", text, flags=re.S)[1]
        assert len(declared.split(",")) == len(_c_api.STATUS[name]), name


def test_codings_are_the_librarys():
    from sluice_moe.ops import CODINGS
    args = _c_api.QuantizeArgs(coding=b"abacus")
    with pytest.raises(ValueError, match="abacus") as refusal:
        _library.call("sluice_quantize", _library.context(1).get(), args)
    assert str(refusal.value).split("accepted: ")[1].split(", ") == list(CODINGS)


def test_fork_is_refused_not_hung():
    out = python("""
        import os, signal
        moe = layer()
        moe(X, L)
        pid = os.fork()
        if pid == 0:
            signal.alarm(20)
            try: moe(X, L)
            except ValueError as e: print(e, flush=True)
            own = layer()                      # a child may make its own
            print("own", own(X, L).shape, flush=True)
            del moe, own
            os._exit(0)
        print("status", os.waitpid(pid, 0)[1], flush=True)
        print("parent", moe(X, L).shape)
    """)
    assert "which has none of its threads; make it after the fork" in out
    assert "own (3, 32)" in out and "status 0" in out and "parent (3, 32)" in out


def test_engine_after_a_fork():
    out = python(f"""
        import os, signal
        engine = sluice_moe.Engine({str(MODEL)!r}, threads=2)
        pid = os.fork()
        if pid == 0:
            signal.alarm(20)
            try: engine.generate("a")
            except ValueError as e: print(e, flush=True)
            raise SystemExit(0)  # with the handlers of the interpreter's end
        print("status", os.waitpid(pid, 0)[1], flush=True)
        print(len(engine.generate("a", {{"max_new_tokens": 3, "ignore_eos": True}})["output_ids"]))
    """)
    assert "this engine was made by process" in out and "status 0" in out and out.endswith("3\n")


INTERPRETER = """
import array, sys
sys.path[:0] = %r
import sluice_moe
print("format", sluice_moe.format_info("nvfp4").bits, flush=True)
x = memoryview(array.array("f", [1.0] * 32)).cast("B").cast("f", (1, 32))
codes, scales = bytearray(32), bytearray(1)
q = sluice_moe.Quantized(memoryview(codes).cast("B", (1, 32)), memoryview(scales).cast("B", (1, 1)), None, None, "mxfp8",
                         "linear", 32)
sluice_moe.quantize(x, "mxfp8", out=q)
print("codes", codes[0], flush=True)
try: sluice_moe.format_info("fp3")
except ValueError as e: print("refused", e, flush=True)
"""


def test_two_interpreters():
    if sys.version_info >= (3, 12):
        pytest.skip("the interpreter's own module for this has another name in each version from 3.12 on")
    out = python(f"""
        import _xxsubinterpreters as interpreters
        moe = layer()
        moe(X, L)
        for _ in range(2):
            one = interpreters.create()
            interpreters.run_string(one, {INTERPRETER % (sys.path,)!r})
            interpreters.destroy(one)
        print("first", moe(X, L).shape)
    """)
    assert out.count("format 4") == 2 and out.count("refused") == 2 and "first (3, 32)" in out
    assert len(set(re.findall(r"codes (\d+)", out))) == 1


def test_ctrl_c_cancels():
    # A shell starts what it runs in the background with the signal ignored, and children inherit that.
    code = textwrap.dedent(f"""
        import signal
        import sluice_moe
        signal.signal(signal.SIGINT, signal.default_int_handler)
        engine = sluice_moe.Engine({str(MODEL)!r}, threads=1)
        try:
            print("ready", flush=True)
            engine.generate("a", {{"max_new_tokens": 2000, "ignore_eos": True, "n": 64}})
        except KeyboardInterrupt:
            info = engine.get_server_info()
            print("interrupted", flush=True)
    """)
    process = subprocess.Popen([sys.executable, "-c", code], text=True, stdout=subprocess.PIPE)
    assert process.stdout.readline() == "ready\n"
    time.sleep(0.3)
    process.send_signal(signal.SIGINT)
    began = time.perf_counter()
    assert process.communicate(timeout=60)[0] == "interrupted\n"
    assert process.returncode == 0
    assert time.perf_counter() - began < 30


def test_the_end_of_a_process_with_work_under_way():
    out = python(f"""
        import threading
        engine = sluice_moe.Engine({str(MODEL)!r}, threads=2, log=print, progress=lambda *a: None)
        stream = engine.generate("a", {{"max_new_tokens": 2000, "ignore_eos": True}}, stream=True)
        next(stream)
        print("leaving", flush=True)
    """)
    assert out.endswith("leaving\n")


def test_the_end_of_a_process_that_keeps_its_modules():
    """torch keeps modules past the end of the interpreter's list of them: they lose their names, and then come the objects."""
    code = textwrap.dedent(LAYER) + textwrap.dedent(f"""
        import asyncio, ctypes, os, sys
        moe = layer()
        engine = sluice_moe.Engine({str(MODEL)!r}, threads=2)
        stream = asyncio.run(engine.async_generate("a", {{"max_new_tokens": 3}}, stream=True))
        for name in ("__main__", "sluice_moe._library", "sluice_moe._answers"):
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(sys.modules[name]))
    """)
    result = subprocess.run([sys.executable, "-c", code], text=True, capture_output=True, timeout=100)
    assert (result.returncode, result.stderr) == (0, "")


def test_no_gpu():
    import numpy as np
    weights = sluice_moe.MoeWeights(*(np.zeros((2, 64, 64), np.uint16) for _ in range(3)))
    spec = "experts=2 top_k=1 hidden=64 inter=64"
    try:
        bytes_ = sluice_moe.prepared_bytes(spec)
    except sluice_moe.Unsupported as problem:
        assert "built without CUDA" in str(problem)
    else:
        assert bytes_ >= 3 * 2 * 64 * 64 * 2  # a build with CUDA knows without a device
    try:
        sluice_moe.FusedMoE(spec, weights, device="cuda:0")
    except sluice_moe.Error as problem:
        assert isinstance(problem, (sluice_moe.Unsupported, sluice_moe.CudaError)) and len(str(problem)) > 20
    else:
        pytest.skip("this machine has a Hopper GPU")
    with pytest.raises(sluice_moe.Error):
        sluice_moe.Gemm(np.zeros((64, 64), np.uint16), "bf16", device="cuda")
    with pytest.raises(sluice_moe.Error):
        sluice_moe.Engine(MODEL, device="cuda", threads=1)
    with pytest.raises(sluice_moe.Unsupported, match="sm90"):
        sluice_moe.FusedMoE(spec, weights, backend="sm90")


def test_variables_that_are_0_or_1(monkeypatch):
    for value, expected in ((None, (False, True)), ("0", (False, False)), ("1", (True, True))):
        if value is not None:
            monkeypatch.setenv("SLUICE_KEEP_WEIGHTS", value)
        assert (is_set("SLUICE_KEEP_WEIGHTS"), is_set("SLUICE_KEEP_WEIGHTS", "1")) == expected
    for value in ("true", "yes", "2", " 1", ""):
        monkeypatch.setenv("SLUICE_KEEP_WEIGHTS", value)
        with pytest.raises(ValueError, match=f"SLUICE_KEEP_WEIGHTS is '{value}'; accepted: 0, 1"):
            is_set("SLUICE_KEEP_WEIGHTS")


def test_every_variable_is_in_the_reference():
    text = "".join(file.read_text() for file in (SOURCE / "python" / "sluice_moe").rglob("*.py"))
    read = set(re.findall(r"\"(SLUICE_[A-Z0-9_]+)\"", text))
    assert len(read) > 4
    rows = re.findall(r"^\| `(SLUICE_[A-Z0-9_]+)` \|", (SOURCE / "docs" / "reference.md").read_text(), re.M)
    assert read <= set(rows)
