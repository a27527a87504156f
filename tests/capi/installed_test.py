# SPDX-License-Identifier: Apache-2.0
"""What cmake --install leaves: programs build against it with find_package and pkg-config, and run; nothing else leaks.

usage: installed_test.py BUILD SOURCE_FOLDER [unittest arguments]
"""
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import unittest

BUILD, SOURCE = (pathlib.Path(p).resolve() for p in sys.argv[1:3])
MODEL = SOURCE / "models" / "tiny-nemotron-h"


def run(*words, **options):
    result = subprocess.run([str(w) for w in words], text=True, capture_output=True, timeout=200, **options)
    assert result.returncode == 0, f"{words}: {result.stdout}{result.stderr}"
    return result.stdout


class Installed(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = pathlib.Path(tempfile.mkdtemp(prefix="sluice-test-"))
        cls.addClassCleanup(shutil.rmtree, cls.folder)
        cls.prefix = cls.folder / "prefix"
        run("cmake", "--install", BUILD, "--prefix", cls.prefix)
        cls.shared_object = next(cls.prefix.glob("lib*/**/libsluice.so"))

    def test_find_package(self):
        run("cmake", "-S", SOURCE / "tests" / "capi" / "installed", "-B", self.folder / "build", "-G", "Ninja",
            f"-DCMAKE_PREFIX_PATH={self.prefix}", f"-DEXAMPLES={SOURCE / 'examples'}")
        run("cmake", "--build", self.folder / "build")
        self.assertIn("chosen", run(self.folder / "build" / "moe"))
        self.assertGreater(len(run(self.folder / "build" / "generate", MODEL, "Once upon a time")), 40)

    def test_pkg_config(self):
        # It says where it lies, wherever the prefix was moved.
        moved = self.folder / "moved"
        shutil.copytree(self.prefix, moved, symlinks=True)
        library = moved / self.shared_object.parent.relative_to(self.prefix)
        flags = run("pkg-config", "--cflags", "--libs", "sluice", env={"PATH": "/usr/bin:/bin", "PKG_CONFIG_PATH":
                                                                       str(library / "pkgconfig")}).split()
        self.assertTrue(all(str(moved) in f or f == "-lsluice" for f in flags), flags)
        run("cc", "-std=c11", SOURCE / "examples" / "generate.c", *flags, f"-Wl,-rpath,{library}", "-o", self.folder / "c")
        self.assertGreater(len(run(self.folder / "c", MODEL, "Once upon a time")), 40)

    def test_exports_the_c_abi_and_nothing_else(self):
        headers = [self.prefix / "include" / "sluice" / "c.h", *(self.prefix / "include" / "sluice" / "c").glob("*.h")]
        declared = {name for h in headers for name in re.findall(r"\b(sluice_\w+)\(", h.read_text())}
        symbols = {line.split()[-1].split("@")[0] for line in run("nm", "-D", "--defined-only", self.shared_object).splitlines()}
        self.assertEqual({s for s in symbols if not s.startswith("sluice_")}, set())
        self.assertEqual(symbols, declared - {"sluice_init"})  # a template of the header

    def test_needs_only_the_run_time(self):
        needed = re.findall(r"NEEDED.*\[(.*)\]", run("readelf", "-d", self.shared_object))
        foreign = [n for n in needed if not re.match(r"(libc|libm|libstdc\+\+|libgcc_s|ld-linux.*|libpthread|libdl|librt)\.so", n)]
        self.assertEqual(foreign, [])

    def test_program_of_the_prefix_runs(self):
        self.assertRegex(run(self.prefix / "bin" / "sluice", "--version"), r"^sluice \d")


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0], *sys.argv[3:]])
