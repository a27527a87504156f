# SPDX-License-Identifier: Apache-2.0
"""The plug-in of SGLang while a model runs: updates of its weights, against stand-ins."""
import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="torch is not installed: no layers of SGLang")

import sluice_moe.sglang as plugin  # noqa: E402
from reference import round_nvfp4  # noqa: E402
from sglang_case import Layer, StandIns, Updater, apply, fresh_classes, hopper, load, taken  # noqa: E402, F401
from test_experts import ROUNDINGS, SCALE1, SCALE2, Case  # noqa: E402
from test_vllm import fill  # noqa: E402


def test_weights_of_an_update(rng, monkeypatch):
    monkeypatch.setenv("SLUICE_KEEP_WEIGHTS", "1")
    StandIns(monkeypatch)
    plugin.register()
    case, layer = Case(rng, "nvfp4", False, "cpu"), Layer(False)
    case.static()
    method = taken(layer, case)
    other = Case(rng, "nvfp4", False, "cpu")
    other.static()
    fill(layer, other)
    method.restore_weights_before_loading(layer)
    method.process_weights_after_loading(layer)
    other.check(apply(method, layer), lambda y: round_nvfp4(y, np.float32(SCALE1)), lambda y: round_nvfp4(y, np.float32(SCALE2)))


@pytest.mark.parametrize("how", [None, "direct"])
def test_an_update_from_tensors_reaches_the_prepared_weights(rng, monkeypatch, how):
    monkeypatch.setenv("SLUICE_KEEP_WEIGHTS", "1")
    StandIns(monkeypatch)
    plugin.register()
    old, other = Case(rng, "mxfp8", True, "cpu"), Layer()
    case, layer = Case(rng, "mxfp8", True, "cpu"), Layer()
    method, untouched = taken(layer, case), taken(other, old)
    layer.quant_method, other.quant_method = method, untouched
    prepared = []
    monkeypatch.setattr(other.sluice_experts, "load", prepared.append)
    updater, new = Updater(torch.nn.ModuleList([layer, other])), Case(rng, "mxfp8", True, "cpu")
    answer = plugin.update_weights(Updater.update_weights_from_tensor, updater, [(layer, new)], load_format=how)
    assert answer == (True, "Success")
    new.check(apply(method, layer), *ROUNDINGS["mxfp8"])
    old.check(apply(untouched, other), *ROUNDINGS["mxfp8"])
    assert len(prepared) == (1 if how == "direct" else 0)  # whose layers it wrote is not known
    assert not layer.sluice_written


def test_an_update_that_prepares_itself_is_left_alone(rng, monkeypatch):
    """SGLang 0.5.23 prepares weights at the end of all updates, every version those from disk."""
    monkeypatch.setenv("SLUICE_KEEP_WEIGHTS", "1")
    StandIns(monkeypatch)
    plugin.register()
    layer = Layer()
    layer.quant_method = taken(layer, Case(rng, "bf16", True, "cpu"))
    prepared = []
    monkeypatch.setattr(layer.sluice_experts, "load", prepared.append)
    updater, new = Updater(torch.nn.ModuleList([layer])), Case(rng, "bf16", True, "cpu")

    def update_weights_from_disk(self, model_path, load_format):
        load(layer, new)
        return True, "from disk"

    assert plugin.update_weights(update_weights_from_disk, updater, "path", "auto") == (True, "from disk")
    updater.end_weight_update = lambda: None
    assert plugin.update_weights(Updater.update_weights_from_tensor, updater, [(layer, new)])[0]
    assert not prepared and layer.sluice_written
    layer.quant_method.process_weights_after_loading(layer)
    assert prepared == [layer] and not layer.sluice_written


def test_updates_are_refused_where_the_engines_copy_was_freed(rng, monkeypatch):
    StandIns(monkeypatch)
    plugin.register()
    case, layer = Case(rng, "bf16", True, "cpu"), Layer()
    method = taken(layer, case)
    updater = Updater(torch.nn.ModuleList([layer]))
    for original, arguments in ((Updater.update_weights_from_tensor, [[(layer, case)]]), (Updater.update_weights_from_ipc, [None]),
                                (Updater.update_weights_from_disk, ["path", "auto"])):
        ok, message = plugin.update_weights(original, updater, *arguments)
        assert not ok and "SLUICE_KEEP_WEIGHTS=1" in message
    assert updater.begun == 0
    with pytest.raises(RuntimeError, match="SLUICE_KEEP_WEIGHTS=1"):  # by a way that the plug-in does not know
        load(layer, case)
    case.check(apply(method, layer), *ROUNDINGS["bf16"])
    # A model without such layers is SGLang's own business.
    assert plugin.update_weights(Updater.update_weights_from_tensor, Updater(torch.nn.ModuleList()), []) == (True, "Success")
