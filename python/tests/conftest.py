# SPDX-License-Identifier: Apache-2.0
"""What the tests share. SLUICE_LIBRARY names the library under test (ctest sets it); unset, it is the installed wheel's.

SLUICE_TEST_SEED=N repeats the random data of a run; a failing run prints its seed at its top.
"""
import os
import pathlib
import random

import numpy
import pytest

SOURCE = pathlib.Path(__file__).resolve().parents[2]
SEED = int(os.environ.get("SLUICE_TEST_SEED") or random.SystemRandom().getrandbits(32))


def pytest_report_header():
    return f"SLUICE_TEST_SEED={SEED}"


@pytest.fixture
def rng():
    return numpy.random.default_rng(SEED)


@pytest.fixture(scope="session")
def source():
    return SOURCE
