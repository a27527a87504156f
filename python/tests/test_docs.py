# SPDX-License-Identifier: Apache-2.0
"""Code blocks of the documents: each is Python, and those of docs/python.md run from top to bottom."""
import re

import numpy as np
import pytest

from conftest import SOURCE

BLOCK = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)
DOCUMENTS = [SOURCE / "README.md", *sorted((SOURCE / "docs").rglob("*.md"))]


def blocks(document):
    """Compiled, with the document's own line numbers."""
    text = document.read_text()
    for found in BLOCK.finditer(text):
        lines_before = text.count("\n", 0, found.start(1))
        yield compile("\n" * lines_before + found[1], str(document), "exec")


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(SOURCE)))
def test_blocks_are_python(document):
    fences = len(re.findall(r"^```python$", document.read_text(), re.MULTILINE))
    assert len(list(blocks(document))) == fences


def test_the_guide_runs(monkeypatch, capsys):
    monkeypatch.chdir(SOURCE)  # it names the bundled model by a relative path
    names = {"buckets": [[("backbone.norm_f.weight", np.full(256, 0x3F80, np.uint16))]]}  # 1 in bfloat16
    model, training, layer = blocks(SOURCE / "docs" / "python.md")
    exec(model, names)
    assert names["answer"]["meta_info"]["finish_reason"]["type"] in ("stop", "length") and names["text"]
    exec(training, names)
    with names["engine"] as engine:
        assert engine.get_server_info()["weight_version"] == "step-12"
        assert engine.get_weights_by_name("backbone.norm_f.weight") == [1.0] * 100
    exec(layer, names)
    assert names["y"].shape == (5, 64) and np.isfinite(names["y"]).all()
    assert "chosen" in capsys.readouterr().out


@pytest.mark.needs("torch")
def test_the_operators_line_runs(rng):
    """The guide's line of sluice_moe.torch_ops, with the layer and the tensors that it names."""
    import torch

    import sluice_moe
    from sluice_moe import torch_ops
    (line,) = re.findall(r"`(torch_ops\.[^`]*x, logits[^`]*)`", (SOURCE / "docs" / "python.md").read_text())
    up, gate, down = (torch.from_numpy(rng.normal(size=s).astype(np.float32)).bfloat16()
                      for s in ((4, 32, 64), (4, 32, 64), (4, 64, 32)))
    layer = sluice_moe.FusedMoE("experts=4 top_k=2 hidden=64 inter=32", sluice_moe.MoeWeights(up=up, gate=gate, down=down))
    x, logits = torch.ones(5, 64, dtype=torch.bfloat16), torch.from_numpy(rng.normal(size=(5, 4)).astype(np.float32))
    assert torch.equal(eval(line, {"torch_ops": torch_ops, "layer": layer, "x": x, "logits": logits}), layer(x, logits))
