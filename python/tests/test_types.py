# SPDX-License-Identifier: Apache-2.0
"""The package's types, as its users' checkers see them: mypy --strict by pyproject.toml."""
import importlib.util
import subprocess
import sys

import pytest

from conftest import SOURCE


@pytest.mark.skipif(importlib.util.find_spec("mypy") is None, reason="mypy is not installed")
def test_types(tmp_path):
    result = subprocess.run([sys.executable, "-m", "mypy", "--cache-dir", str(tmp_path)], cwd=SOURCE, text=True,
                            capture_output=True)
    assert result.returncode == 0, result.stdout + result.stderr
