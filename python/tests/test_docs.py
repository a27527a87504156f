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
