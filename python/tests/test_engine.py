# SPDX-License-Identifier: Apache-2.0
"""An engine's answers: transformers' goldens of the trained checkpoints, batches, choices, stops, grammars, refused requests."""
import json
import os
import pathlib

import numpy as np
import pytest

import sluice_moe
from conftest import SOURCE
from engine_case import BUNDLED, CONTINUATION, GREEDY, PROMPT
from engine_case import engine  # noqa: F401 - a fixture

MODELS = os.environ.get("SLUICE_TEST_MODELS")


def safetensors(file):
    with open(file, "rb") as f:
        length = int.from_bytes(f.read(8), "little")
        header, data = json.loads(f.read(length)), f.read()
    types = {"F32": np.float32, "I32": np.int32}
    return {name: np.frombuffer(data[slice(*t["data_offsets"])], types[t["dtype"]]).reshape(t["shape"])
            for name, t in header.items() if name != "__metadata__" and t["dtype"] in types}


def log_softmax(logits):
    logits = logits.astype(np.float64)
    logits = logits - logits.max(-1, keepdims=True)
    return logits - np.log(np.exp(logits).sum(-1, keepdims=True))


@pytest.mark.skipif(not MODELS, reason="SLUICE_TEST_MODELS does not name the trained checkpoints")
@pytest.mark.parametrize("name", ["tiny-qwen3-moe", "tiny-nemotron-h", "tiny-deepseek-v3"])
def test_goldens_of_transformers(name):
    file = pathlib.Path(MODELS) / name / "golden.safetensors"
    if not file.exists():  # the bundled model has none
        pytest.skip(f"{file} is not there")
    golden = safetensors(file)
    options = {"speculative_algorithm": "NEXTN", "speculative_num_steps": 2,
               "speculative_fixed_steps": True} if name == "tiny-deepseek-v3" else {}
    with sluice_moe.Engine(pathlib.Path(MODELS) / name, dtype="float32", threads=2, max_total_tokens=4096,
                           **options) as engine:
        prompt, expected = (golden[f"greedy.{part}_ids"].reshape(-1).tolist() for part in ("prompt", "output"))
        assert len(expected) == 48
        answer = engine.generate(input_ids=prompt, sampling_params={**GREEDY, "max_new_tokens": 48, "ignore_eos": True})
        assert answer["output_ids"] == expected
        if options:
            meta = answer["meta_info"]
            assert 0 < meta["spec_accept_token_num"] <= meta["spec_draft_token_num"]
            assert meta["spec_accept_length"] == 1 + meta["spec_accept_token_num"] / meta["spec_verify_ct"]
        # Log probabilities of the prompt from transformers' logits, which the library's are within 2e-4 of.
        ids, logits = golden["input_ids"][0], golden["logits"][0]
        meta = engine.generate(input_ids=ids.tolist(), sampling_params={"max_new_tokens": 0}, return_logprob=True,
                               logprob_start_len=0, token_ids_logprob=[7, 3])["meta_info"]
        assert len(meta["input_token_logprobs"]) == len(ids)
        assert meta["input_token_logprobs"][0] == (None, ids[0], None)
        expected = log_softmax(logits)
        for i, (value, token, _) in enumerate(meta["input_token_logprobs"][1:], 1):
            assert token == ids[i]
            assert value == pytest.approx(expected[i - 1, token], abs=2 * (2e-4 + 2e-4 * np.abs(logits[i - 1]).max()))
            assert [t for _, t, _ in meta["input_token_ids_logprobs"][i]] == [7, 3]


def test_drafts_keep_the_text(tmp_path):
    """Of the small model with a draft head, and as much of the bundled tokenizer as its vocabulary holds."""
    fixture = SOURCE / "tests" / "fixtures" / "deepseek-v3"
    for name in ("config.json", "model.safetensors"):
        (tmp_path / name).symlink_to(fixture / name)
    tokenizer = json.loads((BUNDLED / "tokenizer.json").read_text())
    words = tokenizer["model"]
    words["vocab"], words["merges"] = {word: i for word, i in words["vocab"].items() if i < 331}, []
    (tmp_path / "tokenizer.json").write_text(json.dumps(tokenizer))
    params = [GREEDY, {"temperature": 0.9, "sampling_seed": 11}]
    params = [{**p, "max_new_tokens": 60, "ignore_eos": True} for p in params]

    def answers(**options):
        with sluice_moe.Engine(tmp_path, threads=2, **options) as engine:
            return [engine.generate(input_ids=[5, 9, 200, 33], sampling_params=p) for p in params]

    plain = answers()
    for steps in (1, 3):
        for fixed in (False, True):
            drafted = answers(speculative_algorithm="NEXTN", speculative_num_steps=steps, speculative_fixed_steps=fixed)
            assert [a["output_ids"] for a in drafted] == [a["output_ids"] for a in plain], (steps, fixed)
            assert not fixed or all(a["meta_info"]["spec_draft_token_num"] > 0 for a in drafted)


def test_text_and_meta(engine):
    answer = engine.generate(PROMPT, {**GREEDY, "max_new_tokens": 48})
    assert answer["text"] == CONTINUATION
    meta = answer["meta_info"]
    assert meta["finish_reason"] == {"type": "length", "length": 48}
    assert (meta["prompt_tokens"], meta["completion_tokens"]) == (len(engine.encode(PROMPT)), 48)
    assert engine.decode(answer["output_ids"]) == CONTINUATION
    assert engine.generate(PROMPT, GREEDY)["meta_info"]["completion_tokens"] == 128  # SGLang's default


def test_batches_keep_their_order(engine):
    prompts = [PROMPT, "Once upon a time", PROMPT, "The house"]
    lengths = [48, 5, 7, 3]
    answers = engine.generate(prompts, [{**GREEDY, "max_new_tokens": n} for n in lengths], rid="four")
    assert [a["index"] for a in answers] == [0, 1, 2, 3]
    assert [a["meta_info"]["id"] for a in answers] == [f"four-{i}" for i in range(4)]
    assert [len(a["output_ids"]) for a in answers] == lengths
    assert answers[0]["text"] == CONTINUATION and CONTINUATION.startswith(answers[2]["text"])
    ids = [engine.encode(p) for p in prompts]
    again = engine.generate(input_ids=ids, sampling_params={**GREEDY, "max_new_tokens": 3})
    assert [a["output_ids"] for a in again] == [a["output_ids"][:3] for a in answers]
    again = engine.generate(input_ids=np.array([ids[0], ids[2]]), sampling_params={**GREEDY, "max_new_tokens": 3})
    assert [a["output_ids"] for a in again] == [answers[0]["output_ids"][:3]] * 2


def test_names_and_values_of_each_prompt(engine):
    """Any sequence is a list of values; a string is one."""
    params = {"max_new_tokens": 1}
    ids = lambda answers: [a["meta_info"]["id"] for a in answers]
    for kind in (list, tuple):
        both = engine.generate(["a", "b"], kind([params, params]), return_logprob=kind([True, False]), rid=kind(["x", "y"]),
                               top_logprobs_num=kind([2, 0]))
        assert ids(both) == ["x", "y"]
        assert ["output_token_logprobs" in a["meta_info"] for a in both] == [True, False]
        assert len(both[0]["meta_info"]["output_top_logprobs"][0]) == 2
    assert ids(engine.generate(["a", "b"], params, rid="both")) == ["both-0", "both-1"]
    assert engine.generate("a", params, rid=("one",))["meta_info"]["id"] == "one"
    for rid in (5, b"x", {"a": 1}, [1, 2], ("a", None), {"a", "b"}):
        with pytest.raises(TypeError, match="rid is .*; accepted: str, or a list of str"):
            engine.generate(["a", "b"], params, rid=rid)
    with pytest.raises(ValueError, match="rid has 1 values for 2 prompts"):
        engine.generate(["a", "b"], params, rid=("x",))


def test_choices_and_seeds(engine):
    params = {"temperature": 1.0, "max_new_tokens": 12, "n": 3, "sampling_seed": 7}
    first, again = engine.generate(PROMPT, params), engine.generate(PROMPT, params)
    assert [a["output_ids"] for a in first] == [a["output_ids"] for a in again]
    assert len({tuple(a["output_ids"]) for a in first}) == 3
    assert engine.generate(PROMPT, {**params, "n": 1})["output_ids"] == first[0]["output_ids"]
    without = {"temperature": 1.0, "max_new_tokens": 12}
    assert engine.generate(PROMPT, without)["output_ids"] != engine.generate(PROMPT, without)["output_ids"]


def test_stops(engine):
    answer = engine.generate(PROMPT, {**GREEDY, "max_new_tokens": 48, "stop": ["house", "nothing"]})
    assert answer["text"] == CONTINUATION[:CONTINUATION.index("house")]
    assert answer["meta_info"]["finish_reason"] == {"type": "stop", "matched": "house"}
    answer = engine.generate(PROMPT, {**GREEDY, "max_new_tokens": 48, "stop": "house", "no_stop_trim": True})
    assert answer["text"] == CONTINUATION[:CONTINUATION.index("house") + 5]
    token = engine.encode(" the")[-1]
    answer = engine.generate(PROMPT, {**GREEDY, "max_new_tokens": 48, "stop_token_ids": [token]})
    assert answer["output_ids"][-1] == token
    assert answer["meta_info"]["finish_reason"] == {"type": "stop", "matched": token}
    for key in (str(token), token, np.int64(token)):
        forced = engine.generate(PROMPT, {**GREEDY, "max_new_tokens": 3, "logit_bias": {key: 100}})
        assert forced["output_ids"] == [token] * 3


def test_stops_are_arrays(engine):
    token = engine.encode(" the")[-1]
    params = {**GREEDY, "max_new_tokens": 48}
    ended = lambda **stops: engine.generate(PROMPT, {**params, **stops})["meta_info"]["finish_reason"]
    forced = {"logit_bias": {0: 100}, "ignore_eos": True}
    for stops in ([0], np.array([0]), np.array([0, 1]), (np.int64(0),)):
        assert ended(stop_token_ids=stops, **forced) == {"type": "stop", "matched": 0}
    assert ended(stop_token_ids=np.array([4001, token])) == {"type": "stop", "matched": token}
    for stops in (np.array(["house"]), np.array(["nothing", "house"]), ("house",)):
        assert ended(stop=stops) == {"type": "stop", "matched": "house"}
    for none in (np.array([]), [], None):
        assert ended(stop=none, stop_token_ids=none)["type"] == "length"
    with pytest.raises(TypeError, match="stop_token_ids is 0; accepted: a list of integers"):
        ended(stop_token_ids=0)
    with pytest.raises(TypeError, match="sampling_params.logit_bias is ndarray; accepted: a dict"):
        ended(logit_bias=np.array([0]))


def test_grammars(engine):
    try:
        answer = engine.generate(PROMPT, {**GREEDY, "regex": "(yes|no)"})
    except sluice_moe.Unsupported as problem:
        pytest.skip(str(problem))
    assert answer["text"] in ("yes", "no") and answer["meta_info"]["finish_reason"]["type"] == "stop"
    schema = {"type": "object", "properties": {"n": {"type": "integer", "minimum": 1, "maximum": 9}}, "required": ["n"]}
    for given in (schema, json.dumps(schema)):
        document = json.loads(engine.generate(PROMPT, {**GREEDY, "json_schema": given})["text"])
        assert set(document) == {"n"} and 1 <= document["n"] <= 9
    assert engine.generate(PROMPT, {**GREEDY, "json_schema": {"const": "Gr\u00fc\u00dfe"}})["text"] == '"Gr\u00fc\u00dfe"'
    assert engine.generate(PROMPT, {**GREEDY, "ebnf": 'root ::= "a" "b"'})["text"] == "ab"
    for params, kind, sentence in [({"regex": "("}, ValueError, "regular expression"), ({"regex": 5}, TypeError, "regex is int"),
                                   ({"regex": "a", "ebnf": "b"}, ValueError, "regex and ebnf; accepted: one of them"),
                                   ({"json_schema": {"a": object()}}, TypeError, "json_schema cannot be written as JSON")]:
        with pytest.raises(kind, match=sentence):
            engine.generate(PROMPT, params)


@pytest.mark.parametrize("arguments, kind, sentence", [
    ({}, ValueError, "prompt and input_ids: exactly one"),
    ({"prompt": "a", "input_ids": [1]}, ValueError, "prompt and input_ids: exactly one"),
    ({"prompt": 5}, TypeError, "prompt is int"),
    ({"prompt": [5]}, TypeError, "text is int"),
    ({"prompt": []}, ValueError, "there are no prompts"),
    ({"input_ids": []}, ValueError, "prompt has no tokens"),
    ({"input_ids": [1, "a"]}, TypeError, "input_ids is"),
    ({"input_ids": [99999]}, ValueError, "input_ids has 99999; accepted: token ids from 0 to 4095"),
    ({"prompt": "a", "sampling_params": {"max_tokens": 4}}, TypeError, "sampling_params has 'max_tokens'; accepted: max_new"),
    ({"prompt": "a", "sampling_params": {"temperature": -1}}, ValueError, "temperature is -1; accepted: 0 or more"),
    ({"prompt": "a", "sampling_params": {"temperature": "hot"}}, TypeError, "sampling_params.temperature is str"),
    ({"prompt": "a", "sampling_params": {"top_p": 0}}, ValueError, "sampling_params.top_p is 0"),
    ({"prompt": "a", "sampling_params": {"n": 0}}, ValueError, "n is 0; accepted: 1 to 128"),
    ({"prompt": "a", "sampling_params": {"max_new_tokens": 10**6}}, ValueError, "1000000 new tokens are asked for; accepted: at most"),
    ({"prompt": "a", "sampling_params": {"stop": "x\0y"}}, ValueError, "sampling_params.stop holds a zero character"),
    ({"prompt": "a", "sampling_params": {"logit_bias": {"a": 1}}}, ValueError, "logit_bias has keys"),
    ({"prompt": "a", "sampling_params": {"logit_bias": {282.7: 100}}}, ValueError,
     r"sampling_params.logit_bias has keys \[282.7\]; accepted: token ids, as integers or str"),
    ({"prompt": "a", "sampling_params": {"logit_bias": {"282.7": 100}}}, ValueError, "logit_bias has keys"),
    ({"prompt": "a", "sampling_params": {"logit_bias": {b"282": 100}}}, ValueError, "logit_bias has keys"),
    ({"prompt": ["a", "b"], "sampling_params": [{}]}, ValueError, "sampling_params has 1 values for 2 prompts"),
    ({"prompt": "a", "return_logprob": True, "top_logprobs_num": 999}, ValueError, "top_logprobs is 999"),
    ({"prompt": "a", "return_logprob": True, "logprob_start_len": 9}, ValueError, "logprob_start_len is 9"),
])
def test_requests_are_checked(engine, arguments, kind, sentence):
    with pytest.raises(kind, match=sentence):
        engine.generate(**arguments)


def test_prompts_as_long_as_the_context():
    with sluice_moe.Engine(BUNDLED, threads=1, context_length=64) as engine:
        length = lambda count, **params: len(engine.generate(input_ids=[300] * count, sampling_params={
            **GREEDY, "ignore_eos": True, **params})["output_ids"])
        assert length(60) == 4 and length(63) == 1  # to the end of the context, at most 128
        assert length(64, max_new_tokens=0) == 0  # as it was asked for
        for params in ({}, {"max_new_tokens": None}):
            with pytest.raises(ValueError, match="prompt has 64 tokens; the context of 64 leaves no room for an answer"):
                length(64, **params)
        with pytest.raises(ValueError, match="prompt has 65 tokens; the context is 64"):
            length(65)
        assert len(engine.score([300] * 60, [[5] * 3], [9])) == 1
        sentence = "64 tokens with query; accepted: at most 63, what the context of 64 has beside the label"
        for items, index in (([[5] * 3, [5] * 4], 1), (np.full((2, 4), 5), 0)):
            with pytest.raises(ValueError, match=rf"items\[{index}\] has {sentence}"):
                engine.score([300] * 60, items, [9])
        word = engine.decode([300])
        with pytest.raises(ValueError, match=r"items\[0\] has \d+ tokens with query"):
            engine.score(word * 80, word, [9])


def test_texts_hold_zero_characters(engine):
    for text in ("a\0b", "\0", "a\0", "\0\0b", ""):
        assert engine.decode(engine.encode(text)) == text


def test_ids_without_a_text(engine):
    for id in (99999, engine.vocab_size, -1):
        with pytest.raises(ValueError, match=f"ids has {id}; accepted: token ids from 0 to {engine.vocab_size - 1}"):
            engine.decode([5, id])
