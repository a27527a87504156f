# SPDX-License-Identifier: Apache-2.0
"""Engines that begin with dummy weights and take every tensor from a trainer."""
import numpy as np
import pytest

import sluice_moe
from engine_case import BUNDLED
from reference import bf16
from weights_case import (
    NORM, answer, buckets, checksums, fp8_experts, halved, logprobs_of, make_dummy, make_engine, shuffled, write_checkpoint)
from weights_case import engine, shared, tensors  # noqa: F401 - fixtures


@pytest.mark.parametrize("quantization", [None, "mxfp8"])
def test_an_engine_of_dummies_takes_a_trainers_tensors(engine, tensors, tmp_path, rng, quantization):
    if quantization is None:
        expected = logprobs_of(engine)
    else:
        with make_engine(quantization=quantization) as loaded:
            expected = logprobs_of(loaded)
    with make_dummy(tmp_path / "dummy", quantization=quantization) as dummy:
        assert logprobs_of(dummy) != expected
        *all_but_last, last = buckets(shuffled(tensors, rng), 2**21)
        come = 0
        for bucket in all_but_last:
            _, sentence = dummy.update_weights_from_tensor(bucket, load_format="flattened_bucket", weight_version="sent")
            come += len(bucket["metadata"])
            assert f"{come} of the model's {len(tensors)} have come" in sentence and "is missing" in sentence
            assert dummy.get_server_info()["weight_version"] == "0"
        _, sentence = dummy.update_weights_from_tensor(last, load_format="flattened_bucket", weight_version="sent")
        assert "in use, as version sent" in sentence
        assert logprobs_of(dummy) == expected
        assert dummy.weights_checker()["ranks"][0]["checksums"] == checksums(tensors)[0]
        assert dummy.get_weights_by_name(NORM, 3) == bf16(tensors[NORM][:3]).tolist()
        # As verl: released, and sent anew.
        dummy.release_memory_occupation()
        dummy.resume_memory_occupation()
        with pytest.raises(sluice_moe.Busy, match="have not come again"):
            answer(dummy)
        dummy.update_weights_from_tensor(tensors)
        assert logprobs_of(dummy) == expected


def test_dummies_until_the_end(engine, tensors, tmp_path):
    expected = logprobs_of(engine)
    with make_dummy(tmp_path / "dummy") as dummy:
        first = logprobs_of(dummy)
        with pytest.raises(sluice_moe.InvalidArgument, match=r"norm.weight. has the shape \[255\]; accepted: \[256\]"):
            dummy.update_weights_from_tensor([(NORM, tensors[NORM][:-1])])
        dummy.begin_weight_update()
        _, sentence = dummy.update_weights_from_tensor({n: t for n, t in tensors.items() if n != NORM})
        assert NORM in sentence
        with pytest.raises(sluice_moe.InvalidArgument, match=f"tensors have come; .{NORM}. is missing"):
            dummy.end_weight_update()
        dummy.begin_weight_update()
        assert "end_weight_update" in dummy.update_weights_from_tensor([(NORM, tensors[NORM])])[1]
        assert logprobs_of(dummy) == first
        dummy.end_weight_update()
        assert logprobs_of(dummy) == expected
    with make_dummy(tmp_path / "again") as dummy:
        dummy.release_memory_occupation()
        dummy.resume_memory_occupation()
        assert logprobs_of(dummy) == first
        dummy.update_weights_from_disk(BUNDLED)
        assert logprobs_of(dummy) == expected


def test_names_that_the_model_does_not_use(tensors, tmp_path):
    known = checksums(tensors)[0]
    extra, unknown = ("model.rotary_emb.inv_freq", tensors[NORM]), ("xyz", tensors[NORM])
    with make_dummy(tmp_path / "dummy") as dummy:
        assert f"0 of the model's {len(tensors)} have come" in dummy.update_weights_from_tensor([extra])[1]
        sentence = dummy.update_weights_from_tensor([*tensors.items(), extra], weight_version="all")[1]
        assert sentence == f"{len(tensors)} tensors are in use, as version all"
        for given in ([unknown], [(NORM, halved(tensors[NORM])), unknown]):
            with pytest.raises(sluice_moe.InvalidArgument, match='has no tensor "xyz"'):
                dummy.update_weights_from_tensor(given)
        # It came before the model was complete, and a trainer sends it every time.
        assert "have none of these 1 tensors" in dummy.update_weights_from_tensor([extra])[1]
        assert dummy.update_weights_from_tensor([(NORM, tensors[NORM]), extra])[1].startswith("1 tensors are in use")
        assert dummy.weights_checker()["ranks"][0]["checksums"] == known
        dummy.release_memory_occupation()
        dummy.resume_memory_occupation()
        assert f"{len(tensors)} tensors are in use" in dummy.update_weights_from_tensor(tensors)[1]
        answer(dummy)


def test_dummies_of_a_quantised_configuration_wait_for_the_scales(tensors, tmp_path):
    ml_dtypes = pytest.importorskip("ml_dtypes")
    codes, scales, config = fp8_experts(tensors)
    folder = write_checkpoint(tmp_path / "folder", codes | scales, **config)
    with make_engine(folder) as loaded:
        expected = logprobs_of(loaded)
    with make_dummy(tmp_path / "dummy", folder) as dummy:
        _, sentence = dummy.update_weights_from_tensor(
            {n: t.view(ml_dtypes.float8_e4m3fn) if t.dtype == np.uint8 else t for n, t in codes.items()})
        assert f"{len(codes)} of the model's {len(codes) + len(scales)} have come" in sentence
        assert "scale' is missing" in sentence
        _, sentence = dummy.update_weights_from_tensor(scales)
        assert "in use" in sentence
        assert logprobs_of(dummy) == expected
