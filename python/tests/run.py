# SPDX-License-Identifier: Apache-2.0
"""Runs the package's tests against a library that CMake built, without installing anything.

usage: run.py LIBRARY SOURCE_FOLDER [pytest arguments]   exit code 77: numpy or pytest are not installed

SLUICE_TEST_PYTHON names the interpreter; unset, it is build/python's, else the one that runs this.
"""
import importlib.util
import os
import pathlib
import sys

library, source = (pathlib.Path(p).resolve() for p in sys.argv[1:3])
named = os.environ.get("SLUICE_TEST_PYTHON")
python = pathlib.Path(named or source / "build" / "python" / "bin" / "python").absolute()  # scripts/setup.sh test
if not named and not python.exists():
    if any(importlib.util.find_spec(name) is None for name in ("numpy", "pytest")):
        print("skipped: numpy and pytest are not installed; scripts/setup.sh test installs them where PyPI can be reached")
        sys.exit(77)
    python = pathlib.Path(sys.executable)
environment = {**os.environ, "SLUICE_LIBRARY": str(library), "PYTHONDONTWRITEBYTECODE": "1", "PYTHONPATH": os.pathsep.join(
    [str(source / "python"), *filter(None, [os.environ.get("PYTHONPATH")])])}
os.chdir(source)
os.execve(python, [str(python), "-m", "pytest", "-p", "no:cacheprovider", "-rs", *sys.argv[3:]], environment)
