# SPDX-License-Identifier: Apache-2.0
"""Weights from a trainer by torch: broadcasts of its process groups, and its tensors."""
import importlib.util
import socket
import subprocess
import sys

import numpy as np
import pytest

import sluice_moe
from reference import bf16
from weights_case import EXPERT, NORM, answer, halved
from weights_case import engine, shared, tensors  # noqa: F401 - fixtures


def test_groups_without_torch(engine):
    if importlib.util.find_spec("torch") is None:
        with pytest.raises(sluice_moe.Unsupported, match="need torch"):
            engine.init_weights_update_group("127.0.0.1", 1234, 1, 2, "group", "gloo")
    for arguments, problem in ((("127.0.0.1", 1234, 0, 2, "g", "gloo"), "rank_offset is 0"),
                               (("127.0.0.1", 0, 1, 2, "g", "gloo"), "master_port is 0"),
                               (("127.0.0.1", 1234, 1, 1, "g", "gloo"), "world_size is 1"),
                               (("127.0.0.1", 1234, 1, 2, "g", "mpi"), "backend is 'mpi'")):
        with pytest.raises(ValueError, match=problem):
            engine.init_weights_update_group(*arguments)
    with pytest.raises(sluice_moe.InvalidArgument, match="join it with init_weights_update_group"):
        engine.update_weights_from_distributed([NORM], ["bfloat16"], [[256]], "nowhere")
    with pytest.raises(ValueError, match="names, dtypes and shapes have 1, 0 and 1 entries"):
        engine.update_weights_from_distributed([NORM], [], [[256]], "nowhere")
    with pytest.raises(sluice_moe.InvalidArgument, match="accepted: a group that was joined"):
        engine.destroy_weights_update_group("nowhere")


# A trainer in its own process: rank 0 of a gloo group, made as RL frameworks make it, beside a default group of its own.
TRAINER = """
import sys, torch, torch.distributed as dist
from datetime import timedelta
port, bucket = int(sys.argv[1]), sys.argv[2] == "bucket"
c10d = dist.distributed_c10d
dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
store, rank, size = next(c10d.rendezvous(f"tcp://127.0.0.1:{port}", 0, 2, timeout=timedelta(seconds=60)))
group, _ = c10d._new_process_group_helper(size, rank, [], c10d.Backend("gloo"), c10d.PrefixStore("update", store),
                                          group_name="update", timeout=timedelta(seconds=60))
c10d._world.pg_group_ranks[group] = {0: 0, 1: 1}
tensors = [torch.full((256,), 0.5, dtype=torch.bfloat16), torch.full((248, 256), 0.01, dtype=torch.bfloat16)]
if bucket:
    tensors = [torch.cat([t.reshape(-1).view(torch.uint8) for t in tensors])]
for t in tensors:
    dist.broadcast(t, src=0, group=group)
print("sent", flush=True)
sys.stdin.read()
"""


@pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="torch is not installed: no process group to join")
@pytest.mark.parametrize("form", ["tensors", "bucket"])
def test_a_broadcast_of_a_torch_group(engine, form):
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
    trainer = subprocess.Popen([sys.executable, "-c", TRAINER, str(port), form], stdin=subprocess.PIPE,
                               stdout=subprocess.PIPE, text=True)
    try:
        fresh = answer(engine)
        assert engine.init_weights_update_group("127.0.0.1", port, 1, 2, "update", backend="gloo")[0] is True
        engine.update_weights_from_distributed([NORM, EXPERT], ["bfloat16", "torch.bfloat16"], [[256], (248, 256)], "update",
                                               load_format="flattened_bucket" if form == "bucket" else None,
                                               weight_version="sent")
        assert trainer.stdout.readline() == "sent\n"
        assert engine.get_weights_by_name(NORM, 3) == [0.5] * 3
        assert engine.get_weights_by_name(EXPERT, 1)[0][:2] == [0.010009765625] * 2
        assert answer(engine) != fresh and engine.get_server_info()["weight_version"] == "sent"
        engine.destroy_weights_update_group("update")
    finally:
        trainer.stdin.close()
        trainer.wait(60)


@pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="torch is not installed: none of its tensors")
def test_torch_tensors(engine, tensors):
    import torch
    new = halved(tensors[EXPERT])
    t = torch.from_numpy(new.view(np.int16)).view(torch.bfloat16)
    engine.update_weights_from_tensor([(EXPERT, torch.nn.Parameter(t.T.contiguous()).T)])  # neither contiguous nor detached
    assert engine.get_weights_by_name(EXPERT, 2) == bf16(new[:2]).tolist()
    engine.update_weights_from_tensor([(EXPERT, torch._neg_view(t))])
    assert engine.get_weights_by_name(EXPERT, 2) == (-bf16(new[:2])).tolist()
