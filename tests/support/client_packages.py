# SPDX-License-Identifier: Apache-2.0
"""Packages that others wrote, for tests run as SCRIPT PROGRAM SOURCE_FOLDER ...: from the environment that they run in, or
from build/clients, which scripts/setup.sh test makes."""
import importlib.util
import os
import pathlib
import sys


def prefer(*modules):
    """Where one of them is not installed, begins the script again in build/clients, if there is one. What is missing now."""
    missing = [name for name in modules if importlib.util.find_spec(name) is None]
    python = pathlib.Path(sys.argv[2]).resolve() / "build" / "clients" / "bin" / "python"
    if missing and python.exists() and "SLUICE_CLIENTS" not in os.environ:
        os.execve(python, [str(python), *sys.argv], {**os.environ, "SLUICE_CLIENTS": "1"})
    return missing


def need(*modules):
    """The same; without them the script ends with exit code 77."""
    if missing := prefer(*modules):
        print(f"skipped: {', '.join(missing)} not installed; scripts/setup.sh test installs them where PyPI can be reached")
        sys.exit(77)
