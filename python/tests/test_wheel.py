# SPDX-License-Identifier: Apache-2.0
"""`pip wheel .`, and the package as a user gets it. It compiles the library, so it runs where ctest asks for it."""
import os
import pathlib
import re
import subprocess
import sys
import zipfile

import pytest

from conftest import SOURCE

CUDA = os.environ.get("SLUICE_TEST_WHEEL")
pytestmark = pytest.mark.skipif(not CUDA, reason="SLUICE_TEST_WHEEL is not set to ON or OFF (CUDA); ctest sets it")
MOST_BYTES = 90_000_000  # PyPI takes 100 MB


def run(*words, **options):
    result = subprocess.run([str(w) for w in words], text=True, capture_output=True, **options)
    assert result.returncode == 0, f"{words}: {result.stdout}{result.stderr}"
    return result.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    pytest.importorskip("scikit_build_core", reason="scikit-build-core is not installed")
    folder = tmp_path_factory.mktemp("wheel")
    run(sys.executable, "-m", "pip", "wheel", "--no-build-isolation", "--no-deps", "--no-index", "-w", folder, "-C",
        f"cmake.define.SLUICE_CUDA={CUDA}", SOURCE)  # in build/wheel, where what did not change stays
    file, = folder.glob("*.whl")
    return file


@pytest.fixture(scope="module")
def installed(wheel, tmp_path_factory):
    folder = tmp_path_factory.mktemp("installed")
    run(sys.executable, "-m", "pip", "install", "--no-deps", "--no-index", "--target", folder, wheel)
    return folder


def test_one_wheel_for_every_python(wheel):
    assert re.fullmatch(r"sluice_moe-0\.1\.0-py3-none-linux_x86_64\.whl", wheel.name)
    assert wheel.stat().st_size < MOST_BYTES
    names = {n for n in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in n}
    package = SOURCE / "python"
    sources = {str(f.relative_to(package)) for f in (package / "sluice_moe").rglob("*")
               if f.is_file() and f.suffix != ".pyc"}
    assert names == sources | {"sluice_moe/libsluice.so"}


def test_it_works_as_installed(installed):
    environment = {k: v for k, v in os.environ.items() if k != "SLUICE_LIBRARY"}
    out = run(sys.executable, "-c", """
import sluice_moe
print(sluice_moe.__file__)
print(sluice_moe.explain("experts=4 top_k=2 hidden=256 inter=128 weights=nvfp4"))
""", env={**environment, "PYTHONPATH": str(installed)})
    assert str(installed) in out and "chosen" in out


def test_the_library_needs_only_c(installed):
    library = installed / "sluice_moe" / "libsluice.so"
    needed = set(re.findall(r"NEEDED.*\[(.*)\]", run("readelf", "-d", library)))
    assert {n for n in needed if not re.match(r"(libc|libm|ld-linux.*|libpthread|libdl|librt)\.so", n)} == set()
    exported = {line.split()[-1].split("@")[0] for line in run("nm", "-D", "--defined-only", library).splitlines()}
    assert {s for s in exported if not s.startswith("sluice_")} == set()


def test_the_wheel_runs_on_an_old_glibc(installed, wheel, tmp_path):
    """cmake/OldGlibc.cmake: nothing newer than 2.28, whatever this system has; manylinux.py tags it so."""
    library = installed / "sluice_moe" / "libsluice.so"
    versions = {tuple(map(int, v.split("."))) for v in re.findall(r"GLIBC_([\d.]+)", run("objdump", "-T", library))}
    assert max(versions) <= (2, 28)
    # Every old function is bound: one that the linker does not find would be a null pointer.
    text = (SOURCE / "cmake" / "OldGlibc.cmake").read_text()
    system = tuple(map(int, re.findall(r"\d+", run("getconf", "GNU_LIBC_VERSION"))))
    bound = set(re.findall(r"(\S+?)@GLIBC", run("nm", "-D", "--undefined-only", library)))
    for since, names in re.findall(r"set\(SLUICE_RENEWED_IN_([\d.]+)([^)]*)\)", text):
        if tuple(map(int, since.split("."))) <= system:
            assert set(names.split()) - bound == set()
    out = run(sys.executable, SOURCE / "python" / "manylinux.py", wheel, tmp_path).splitlines()
    retagged, = tmp_path.glob("*.whl")
    assert retagged.name == "sluice_moe-0.1.0-py3-none-manylinux_2_28_x86_64.whl"
    assert out[-1] == str(retagged)
    assert "Tag: py3-none-manylinux_2_28_x86_64" in zipfile.ZipFile(retagged).read("sluice_moe-0.1.0.dist-info/WHEEL").decode()
    again = pathlib.Path(tmp_path / "installed")
    run(sys.executable, "-m", "pip", "install", "--no-deps", "--no-index", "--target", again, retagged)
    assert (again / "sluice_moe" / "libsluice.so").read_bytes() == library.read_bytes()
