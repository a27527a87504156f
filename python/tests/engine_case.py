# SPDX-License-Identifier: Apache-2.0
"""What the tests of sluice_moe.Engine share: the bundled model, a prompt with its continuation, and an engine for each module.
A module takes the fixture `engine` by importing it."""
import time

import pytest

import sluice_moe
from conftest import SOURCE

BUNDLED = SOURCE / "models" / "tiny-nemotron-h"
PROMPT = "Henry meditated awhile all to himself early the next morning as"
# README.md of the checkpoint: 48 greedy tokens of transformers in float32.
CONTINUATION = (" he went down the hill to the house. He had been in the house for a long time, and had been in the house for "
                "some time, when he had been in the house, and had been in the house for some time,")
GREEDY = {"temperature": 0}


@pytest.fixture(scope="module")
def engine():
    with sluice_moe.Engine(BUNDLED, dtype="float32", threads=2, max_total_tokens=8192) as engine:
        yield engine


def wait_until_idle(engine):
    for _ in range(1000):
        info = engine.get_server_info()
        if info["num_running_reqs"] + info["num_queue_reqs"] == 0:
            return
        time.sleep(0.005)
    pytest.fail(f"requests go on: {info}")
