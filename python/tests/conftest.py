# SPDX-License-Identifier: Apache-2.0
"""What the tests share. SLUICE_LIBRARY names the library under test (ctest sets it); unset, it is the installed wheel's.

SLUICE_TEST_SEED=N repeats the random data of a run; a failing run prints its seed at its top. Tests on a GPU need torch and
a Hopper GPU, and say so where they skip. SLUICE_TEST_REQUIRE names packages that must be there: a test that needs one of them
fails where it would skip (scripts/test.sh with SLUICE_TEST_ENGINES).
"""
import importlib.util
import os
import pathlib
import random

import numpy
import pytest

SOURCE = pathlib.Path(__file__).resolve().parents[2]
REQUIRED = os.environ.get("SLUICE_TEST_REQUIRE", "").split()
SEED = int(os.environ.get("SLUICE_TEST_SEED") or random.SystemRandom().getrandbits(32))


def installed(package):
    """Whether a package can be imported. A folder of its name beside the tests, such as a checkout, is a namespace: it has no origin."""
    spec = importlib.util.find_spec(package)
    return spec is not None and spec.origin is not None


def _no_hopper():
    """Why there are no tests on a GPU; None where there are."""
    if not installed("torch"):
        return "torch is not installed: no tensors on a GPU"
    import torch
    if not torch.cuda.is_available() or torch.cuda.get_device_capability() != (9, 0):
        return "no Hopper GPU"
    return None


NO_HOPPER = _no_hopper()
hopper = pytest.mark.skipif(NO_HOPPER is not None, reason=NO_HOPPER or "")
DEVICES = ["cpu", pytest.param("cuda", marks=hopper)]


def pytest_configure(config):
    config.addinivalue_line("markers", "needs(package): the test asks for the package and for nothing else, no GPU; it skips without it")
    missing = [package for package in REQUIRED if not installed(package)]
    if missing:
        raise pytest.UsageError(f"SLUICE_TEST_REQUIRE names {', '.join(missing)}, which this Python does not have")


def _needed(item):
    return [mark.args[0] for mark in item.iter_markers("needs")]


def pytest_collection_modifyitems(items):
    for item in items:
        for package in _needed(item):
            if not installed(package):
                item.add_marker(pytest.mark.skip(reason=f"{package} is not installed"))


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item):
    """An engine that is installed and cannot be imported must not pass by skipping where it is required."""
    report = (yield).get_result()
    required = [package for package in _needed(item) if package in REQUIRED]
    if report.skipped and required:
        report.outcome = "failed"
        report.longrepr = f"{item.nodeid} skips, but SLUICE_TEST_REQUIRE names {', '.join(required)}: {report.longrepr[-1]}"


def pytest_report_header():
    return f"SLUICE_TEST_SEED={SEED}"


@pytest.fixture
def rng():
    return numpy.random.default_rng(SEED)


@pytest.fixture(scope="session")
def source():
    return SOURCE
