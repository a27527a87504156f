# SPDX-License-Identifier: Apache-2.0
"""Engine: transformers' goldens of the trained checkpoints, batches, streams, asyncio, scores, chats, reloads."""
import asyncio
import json
import os
import pathlib
import threading
import time

import numpy as np
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


MODELS = os.environ.get("SLUICE_TEST_MODELS")


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


@pytest.mark.skipif(not MODELS, reason="SLUICE_TEST_MODELS does not name the trained checkpoints")
@pytest.mark.parametrize("name", ["tiny-qwen3-moe", "tiny-nemotron-h", "tiny-deepseek-v3"])
def test_goldens_of_transformers(name):
    golden = safetensors(pathlib.Path(MODELS) / name / "golden.safetensors")
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


def test_choices_and_seeds(engine):
    params = {"temperature": 1.0, "max_new_tokens": 12, "n": 3, "sampling_seed": 7}
    first, again = engine.generate(PROMPT, params), engine.generate(PROMPT, params)
    assert [a["output_ids"] for a in first] == [a["output_ids"] for a in again]
    assert len({tuple(a["output_ids"]) for a in first}) == 3
    assert engine.generate(PROMPT, {**params, "n": 1})["output_ids"] == first[0]["output_ids"]
    without = {"temperature": 1.0, "max_new_tokens": 12}
    assert engine.generate(PROMPT, without)["output_ids"] != engine.generate(PROMPT, without)["output_ids"]


def test_streams_grow(engine):
    texts = [a["text"] for a in engine.generate(PROMPT, {**GREEDY, "max_new_tokens": 48}, stream=True)]
    # A busy machine brings several tokens at once.
    assert len(texts) > 1 and texts[-1] == CONTINUATION
    assert all(b.startswith(a) and len(b) > len(a) for a, b in zip(texts, texts[1:]))


def test_a_stream_that_is_left_is_cancelled(engine):
    stream = engine.generate(PROMPT, {**GREEDY, "max_new_tokens": 1500, "ignore_eos": True}, stream=True)
    next(stream)
    engine.pause_generation("in_place")  # so that it does not end by itself
    stream.close()
    try:
        wait_until_idle(engine)
    finally:
        engine.continue_generation()


def wait_until_idle(engine):
    for _ in range(1000):
        info = engine.get_server_info()
        if info["num_running_reqs"] + info["num_queue_reqs"] == 0:
            return
        time.sleep(0.005)
    pytest.fail(f"requests go on: {info}")


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
    forced = engine.generate(PROMPT, {**GREEDY, "max_new_tokens": 3, "logit_bias": {str(token): 100}})
    assert forced["output_ids"] == [token] * 3


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
    assert engine.generate(PROMPT, {**GREEDY, "ebnf": 'root ::= "a" "b"'})["text"] == "ab"
    for params, kind, sentence in [({"regex": "("}, ValueError, "regular expression"), ({"regex": 5}, TypeError, "regex is int"),
                                   ({"regex": "a", "ebnf": "b"}, ValueError, "regex and ebnf; accepted: one of them"),
                                   ({"json_schema": {"a": object()}}, TypeError, "json_schema cannot be written as JSON")]:
        with pytest.raises(kind, match=sentence):
            engine.generate(PROMPT, params)


def test_logprobs(engine):
    meta = engine.generate(PROMPT, {**GREEDY, "max_new_tokens": 3}, return_logprob=True, logprob_start_len=4,
                           top_logprobs_num=2, token_ids_logprob=[9, 8], return_text_in_logprobs=True)["meta_info"]
    ids = engine.encode(PROMPT)
    assert [token for _, token, _ in meta["input_token_logprobs"]] == ids[4:]
    assert "".join(text for *_, text in meta["output_token_logprobs"]) == " he went down"
    assert meta["output_token_logprobs_length"] == 3 and "input_token_logprobs_length" not in meta
    for (chosen, token, _), top, named in zip(meta["output_token_logprobs"], meta["output_top_logprobs"],
                                              meta["output_token_ids_logprobs"]):
        assert top[0][:2] == (chosen, token) and top[0][0] >= top[1][0]
        assert [t for _, t, _ in named] == [9, 8]
    assert "output_token_logprobs" not in engine.generate(PROMPT, {"max_new_tokens": 1})["meta_info"]
    several = engine.generate([PROMPT, PROMPT], {"max_new_tokens": 1}, return_logprob=[True, False],
                              logprob_start_len=[3, -1])
    assert len(several[0]["meta_info"]["input_token_logprobs"]) == len(ids) - 3
    assert "output_token_logprobs" not in several[1]["meta_info"]


def test_who_has_an_answer_does_not_find_it_counted(engine):
    for _ in range(50):
        engine.generate(PROMPT, {"max_new_tokens": 2})
        info = engine.get_server_info()
        assert (info["num_running_reqs"], info["num_queue_reqs"]) == (0, 0)


def test_every_choice_has_the_prompts_logprobs(engine):
    keys = ["input_token_logprobs", "input_top_logprobs", "input_token_ids_logprobs"]
    options = dict(prompt=PROMPT * 100, sampling_params={**GREEDY, "max_new_tokens": 2, "n": 3}, return_logprob=True,
                   top_logprobs_num=1, token_ids_logprob=[7])
    for answer in engine.generate(**options):  # also puts the prompt into the cache, so that the second choice is quick
        assert [answer["meta_info"][key] for key in keys] == [[], [], []]
        assert len(answer["meta_info"]["output_token_logprobs"]) == 2
    answers = engine.generate(**options, logprob_start_len=0)
    expected = [answers[0]["meta_info"][key] for key in keys]
    assert [len(rows) for rows in expected] == [len(engine.encode(PROMPT * 100))] * 3
    assert [[a["meta_info"][key] for key in keys] for a in answers] == [expected] * 3
    events = list(engine.generate(**options, logprob_start_len=0, stream=True))
    assert [[e["meta_info"][key] for key in keys] for e in events] == [expected] * len(events)
    assert {e["index"]: e["output_ids"] for e in events} == {a["index"]: a["output_ids"] for a in answers}


def test_scores(engine):
    labels = [5, 300, 17]
    items = [" the house", " a long"]
    plain = engine.score("He had been in", items, labels)
    among = engine.score("He had been in", items, labels, apply_softmax=True)
    for item, row, shares in zip(items, plain, among):
        # The whole distribution, from its most likely tokens: they cannot add up to more than 1, and label shares follow.
        meta = engine.generate("He had been in" + item, {**GREEDY, "max_new_tokens": 1}, return_logprob=True,
                               top_logprobs_num=20)["meta_info"]
        likely = {token: np.exp(value) for value, token, _ in meta["output_top_logprobs"][0]}
        for label, value in zip(labels, row):
            assert value == pytest.approx(likely[label], rel=1e-4) if label in likely else value <= min(likely.values())
        assert sum(shares) == pytest.approx(1)
        assert shares == pytest.approx([v / sum(row) for v in row], rel=1e-6)
    by_ids = engine.score(engine.encode("He had been in"), [engine.encode(i) for i in items], labels)
    assert np.allclose(by_ids, plain) or len(engine.encode("He had been in the house")) != len(
        engine.encode("He had been in")) + len(engine.encode(" the house"))
    assert engine.score("the house", ["He had been in "], labels, item_first=True) == engine.score(
        "He had been in the house", "", labels)


def test_chats(engine):
    chat = [{"role": "user", "content": "Hello"}]
    ids = engine.encode_chat(chat)
    assert engine.chat(chat, {**GREEDY, "max_new_tokens": 5}) ["output_ids"] == engine.generate(
        input_ids=ids, sampling_params={**GREEDY, "max_new_tokens": 5})["output_ids"]
    two = engine.chat([chat, [*chat, {"role": "assistant", "content": "Hi"}, *chat]], {**GREEDY, "max_new_tokens": 2})
    assert [a["index"] for a in two] == [0, 1]
    # A special token that a message spells out is text.
    special = next(t for i in range(engine.vocab_size) if (t := engine.decode([i])) and not engine.decode([i], True))
    token, = engine.encode(special)[-1:]
    spelt = engine.encode_chat([{"role": "user", "content": special}])
    assert spelt.count(token) == ids.count(token)
    for bad, kind in (("Hello", TypeError), ([], TypeError), ([{"content": "x"}], ValueError), ([{1: object()}], TypeError)):
        with pytest.raises(kind):
            engine.chat(bad)
    with pytest.raises(TypeError, match="accepted: messages"):
        engine.chat(chat, input_ids=[1])


def test_messages_are_checked_as_the_server_does(engine):
    """The bundled model's chat template knows no tools."""
    user = lambda content: [{"role": "user", "content": content}]
    parts = [{"type": "text", "text": "Hel"}, {"type": "text", "text": "lo"}]
    assert engine.encode_chat(user(parts)) == engine.encode_chat(user("Hello"))
    call = {"id": "a", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    said = engine.encode_chat([*user("Hello"), {"role": "assistant", "content": ""}])
    for message in ({"role": "assistant"}, {"role": "assistant", "content": None, "tool_calls": []}):
        assert engine.encode_chat([*user("Hello"), message]) == said
    for messages, kind, sentence in (
            ([{"role": "user"}], ValueError, r"messages\[0\].content is missing; accepted: a string or an array of text parts"),
            (user(None), ValueError, r"messages\[0\].content is missing"), (user(5), ValueError, r"messages\[0\].content is 5"),
            (user([{"type": "image_url"}]), ValueError, r"messages\[0\].content\[0\] is of type \"image_url\"; accepted: an object"),
            (user(["Hello"]), ValueError, r"messages\[0\].content\[0\] is \"Hello\""),
            ([*user("Hello"), {"role": "assistant", "content": "x", "tool_calls": [call]}], sluice_moe.Unsupported,
             r"messages\[1\].tool_calls cannot be shown to this model: its chat template knows none")):
        with pytest.raises(kind, match=sentence):
            engine.chat(messages)
    with pytest.raises(sluice_moe.Unsupported, match="tools cannot be shown to this model"):
        engine.chat(user("Hello"), tools=[{"type": "function", "function": {"name": "f"}}])
    assert engine.chat(user("Hello"), {**GREEDY, "max_new_tokens": 1}, tools=[])["output_ids"]


def test_arguments_of_calls_are_objects(tmp_path):
    """As transformers hands them to a template; a template that adds them to a string gets the text."""
    for name in ("config.json", "tokenizer.json"):
        (tmp_path / name).symlink_to(BUNDLED / name)
    messages = [{"role": "user", "content": "Hi"}, {"role": "assistant", "tool_calls": [
        {"id": "a", "type": "function", "function": {"name": "f", "arguments": '{"city": "Oslo"}'}}]}]
    for shown, expected in (("{{ c.function.arguments.city }}", "Oslo"), ("{{ 'x' + c.function.arguments }}", 'x{"city": "Oslo"}')):
        (tmp_path / "chat_template.jinja").write_text(
            "{% for m in messages %}{% for c in m.tool_calls or [] %}" + shown + "{% endfor %}{% endfor %}")
        with sluice_moe.Engine(tmp_path, load_format="dummy", threads=2, max_total_tokens=1024) as engine:
            assert engine.decode(engine.encode_chat(messages)) == expected


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


def test_what_no_engine_is_made_of(tmp_path):
    with pytest.raises(sluice_moe.NotFound, match="/nope does not exist; a model is a folder with config.json and safetensors"):
        sluice_moe.Engine("/nope")
    with pytest.raises(sluice_moe.NotFound, match="config.json"):
        sluice_moe.Engine(tmp_path)
    for dtype in ("fp16", "float16", "float8_e4m3fn"):
        with pytest.raises(ValueError, match=f'dtype is "{dtype}"; accepted: bfloat16, float32$'):
            sluice_moe.Engine(BUNDLED, dtype=dtype)


def test_ids_without_a_text(engine):
    for id in (99999, engine.vocab_size, -1):
        with pytest.raises(ValueError, match=f"ids has {id}; accepted: token ids from 0 to {engine.vocab_size - 1}"):
            engine.decode([5, id])


def test_asyncio(engine):
    async def run():
        params = {**GREEDY, "max_new_tokens": 48}
        answers = await asyncio.gather(*(engine.async_generate(PROMPT, params) for _ in range(8)))
        assert {a["text"] for a in answers} == {CONTINUATION}
        texts = [a["text"] async for a in await engine.async_generate(PROMPT, params, stream=True)]
        assert texts[-1] == CONTINUATION and len(texts) > 1
        batch = await engine.async_generate([PROMPT, "The"], {**GREEDY, "max_new_tokens": 2})
        assert [a["index"] for a in batch] == [0, 1]
        long = {**GREEDY, "max_new_tokens": 1500, "ignore_eos": True}
        for _ in range(100):  # the first one that is seen running before it ends
            task = asyncio.create_task(engine.async_generate(PROMPT, long))
            while not task.done() and engine.get_server_info()["num_running_reqs"] == 0:
                await asyncio.sleep(0.001)  # the loop is free while the engine runs
            if task.cancel():
                break
        with pytest.raises(asyncio.CancelledError):
            await task
        await asyncio.to_thread(wait_until_idle, engine)
        stream = await engine.async_generate(PROMPT, long, stream=True)
        async for _ in stream:
            break
        await stream.aclose()
        await asyncio.to_thread(wait_until_idle, engine)
    descriptors = len(os.listdir("/proc/self/fd"))
    asyncio.run(run())
    assert len(os.listdir("/proc/self/fd")) == descriptors


def test_other_threads_run_meanwhile(engine):
    ticks, done = 0, threading.Event()

    def tick():
        nonlocal ticks
        while not done.is_set():
            ticks += 1
            time.sleep(0.001)

    thread = threading.Thread(target=tick)
    thread.start()
    began = time.perf_counter()
    engine.generate([PROMPT] * 8, {**GREEDY, "max_new_tokens": 200, "ignore_eos": True})
    took = time.perf_counter() - began
    done.set()
    thread.join()
    # With the GIL held it would be none at all; a busy machine takes turns away from both.
    assert ticks >= 3, f"{ticks} turns in {took} s"


def test_requests_are_aborted_by_name(engine):
    answers = []
    for _ in range(100):  # until one is seen running before it ends
        thread = threading.Thread(target=lambda: answers.append(engine.generate(
            PROMPT, {**GREEDY, "max_new_tokens": 1500, "ignore_eos": True}, rid="mine")))
        thread.start()
        while thread.is_alive() and not any("mine" in s.batch.rids for s in list(engine._streams)):
            time.sleep(0.001)
        engine.abort_request("another")
        engine.abort_request("mine")
        thread.join()
        if answers[-1]["meta_info"]["finish_reason"]["type"] == "abort":
            break
    assert answers[-1]["meta_info"]["finish_reason"]["type"] == "abort"


def test_other_weights(engine, tmp_path):
    assert engine.update_weights_from_disk(BUNDLED, weight_version="step-3")[0] is True
    answer = engine.generate(PROMPT, {**GREEDY, "max_new_tokens": 3})
    assert (answer["text"], answer["meta_info"]["weight_version"]) == (" he went down", "step-3")
    engine.flush_cache()
    assert engine.generate(PROMPT, {"max_new_tokens": 1})["meta_info"]["cached_tokens"] == 0
    with pytest.raises(sluice_moe.NotFound):
        engine.update_weights_from_disk(tmp_path / "nowhere")
    assert engine.generate(PROMPT, {**GREEDY, "max_new_tokens": 3})["text"] == " he went down"


@pytest.mark.parametrize("mode", ["abort", "retract", "in_place"])
def test_pauses(engine, mode):
    """The order of an RL framework's calls: pause, other weights, flush, continue."""
    stream = engine.generate(PROMPT, {**GREEDY, "max_new_tokens": 48}, stream=True)
    next(stream)
    engine.pause_generation(mode)
    answers = []
    waiting = threading.Thread(target=lambda: answers.append(engine.generate(PROMPT, {**GREEDY, "max_new_tokens": 3})))
    waiting.start()
    engine.update_weights_from_disk(BUNDLED)
    time.sleep(0.05)
    assert not answers
    engine.flush_cache()
    engine.continue_generation()
    waiting.join()
    assert answers[0]["text"] == " he went down"
    *_, last = stream
    if last["meta_info"]["finish_reason"]["type"] == "abort":
        assert mode == "abort" and CONTINUATION.startswith(last["text"])
    else:
        assert last["text"] == CONTINUATION
    with pytest.raises(ValueError, match="mode is 'gently'; accepted: abort, retract, in_place"):
        engine.pause_generation("gently")


def test_progress_and_log():
    seen, lines = [], []
    with sluice_moe.Engine(BUNDLED, threads=1, progress=lambda *what: seen.append(what),
                           log=lambda level, line: lines.append((level, line))) as engine:
        assert seen and seen[-1][1] == seen[-1][2]
        seen.clear()
        engine.generate(["a", "b"], {"max_new_tokens": 1})
    assert seen == [("generating", 1, 2, "answers"), ("generating", 2, 2, "answers")]


def test_a_full_queue():
    with sluice_moe.Engine(BUNDLED, threads=1, max_running_requests=1, max_queued_requests=1,
                           max_total_tokens=2048) as engine:
        streams = []
        with pytest.raises(sluice_moe.Busy, match="the queue is full"):
            for _ in range(8):
                streams.append(engine.generate(PROMPT, {"max_new_tokens": 1900, "ignore_eos": True}, stream=True))
        for stream in streams:
            stream.close()


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
    ({"prompt": ["a", "b"], "sampling_params": [{}]}, ValueError, "sampling_params has 1 values for 2 prompts"),
    ({"prompt": "a", "return_logprob": True, "top_logprobs_num": 999}, ValueError, "top_logprobs is 999"),
    ({"prompt": "a", "return_logprob": True, "logprob_start_len": 9}, ValueError, "logprob_start_len is 9"),
])
def test_requests_are_checked(engine, arguments, kind, sentence):
    with pytest.raises(kind, match=sentence):
        engine.generate(**arguments)


def test_the_cache_is_a_share_of_the_memory():
    with sluice_moe.Engine(BUNDLED, threads=1, mem_fraction_static=0.5, max_running_requests=4, context_length=512,
                           chunked_prefill_size=-1) as engine:
        assert engine.get_server_info()["max_total_num_tokens"] == 4 * 512  # more is no use
        assert engine.generate(PROMPT, {**GREEDY, "max_new_tokens": 3})["text"] == " he went down"


def test_keys_and_values_in_fp8():
    config = json.loads((BUNDLED / "config.json").read_text())
    layers = config["hybrid_override_pattern"].count("*")
    values = 2 * layers * config["num_key_value_heads"] * config["head_dim"]  # of a token
    seen = {}
    for name in ("auto", "bfloat16", "fp8_e4m3"):
        with sluice_moe.Engine(BUNDLED, kv_cache_dtype=name, threads=2, max_total_tokens=1024) as engine:
            answer = engine.generate(PROMPT, {**GREEDY, "max_new_tokens": 8})
            assert answer["meta_info"]["completion_tokens"] == 8
            seen[name] = engine.get_server_info()
    assert seen["auto"]["cache_bytes"] == seen["bfloat16"]["cache_bytes"]
    assert seen["auto"]["cache_bytes"] - seen["fp8_e4m3"]["cache_bytes"] == values * seen["auto"]["max_total_num_tokens"]


def test_the_head_in_8_bits():
    config = json.loads((BUNDLED / "config.json").read_text())
    values = config["vocab_size"] * config["hidden_size"]
    seen = {}
    for head in (None, "bf16", "mxfp8"):
        with sluice_moe.Engine(BUNDLED, quantization="mxfp4", quantization_rest="mxfp8", quantization_head=head,
                               threads=2) as engine:
            answer = engine.generate(PROMPT, {**GREEDY, "max_new_tokens": 8})
            assert answer["meta_info"]["completion_tokens"] == 8
            seen[head] = engine.model_info["weight_bytes"]
    assert seen[None] == seen["bf16"]
    assert seen[None] - seen["mxfp8"] == values * 2 - values * 33 / 32  # a scale for each 32 values


def test_dummy_weights_need_the_configuration_alone(tmp_path):
    for name in ("config.json", "tokenizer.json"):
        (tmp_path / name).symlink_to(BUNDLED / name)
    params = {**GREEDY, "max_new_tokens": 24, "ignore_eos": True}
    with pytest.raises(sluice_moe.NotFound, match="model.safetensors"):
        sluice_moe.Engine(tmp_path, threads=2)
    for options in ({}, {"quantization": "mxfp8"}):
        answers = []
        for _ in range(2):
            with sluice_moe.Engine(tmp_path, load_format="dummy", threads=2, **options) as engine:
                answers.append(engine.generate(PROMPT, params)["output_ids"])
        assert answers[0] == answers[1] and len(answers[0]) == 24
    with sluice_moe.Engine(tmp_path, load_format="dummy", dtype="float32", threads=2) as engine:
        assert engine.generate(PROMPT, params)["text"] != CONTINUATION[:len(CONTINUATION) // 2]
        for call in (engine.weights_checker, lambda: engine.get_weights_by_name("lm_head.weight")):
            with pytest.raises(sluice_moe.Unsupported, match='the weights are dummies \\(load_format "dummy"\\)'):
                call()
        # A checkpoint takes their place, and its tensors are read.
        assert engine.update_weights_from_disk(BUNDLED)[0]
        assert CONTINUATION.startswith(engine.generate(PROMPT, params)["text"])
        assert engine.weights_checker()["ranks"][0]["checksums"]


def test_engines_are_checked(tmp_path):
    for options, kind, sentence in [
        ({"model_path": tmp_path / "nowhere"}, sluice_moe.NotFound, "nowhere"),
        ({"model_path": 7}, TypeError, "int"),
        ({"device": "abacus"}, ValueError, "abacus"),
        ({"dtype": "float16"}, ValueError, "float16"),
        ({"load_format": "safetensors"}, ValueError, 'load_format is "safetensors"; accepted: auto, dummy'),
        ({"quantization": "fp3"}, ValueError, "fp3"),
        ({"quantization": "mxfp4", "quantization_head": "q8_0"}, ValueError, 'quantization_head is "q8_0"; accepted: bf16'),
        ({"quantization_head": "mxfp8"}, ValueError, "quantization is not given"),
        ({"kv_cache_dtype": "int8"}, ValueError, 'kv_cache_dtype is "int8"; accepted: auto, fp8_e4m3'),
        ({"kv_cache_dtype": "bfloat16", "dtype": "float32"}, ValueError, "bfloat16 with dtype bfloat16"),
        ({"speculative_algorithm": "EAGLE"}, ValueError, "accepted: None, 'NEXTN'"),
        ({"speculative_algorithm": "NEXTN"}, sluice_moe.Unsupported, "draft"),
        ({"threads": 5000}, ValueError, "threads is 5000"),
        ({"context_length": 10**9}, ValueError, "context_length"),
        ({"max_running_requests": 5000}, ValueError, "max_running_requests is 5000; accepted: 1 to 4096"),
        ({"chunked_prefill_size": -2}, ValueError, "chunked_prefill_size is -2"),
        ({"mem_fraction_static": 0.0001}, ValueError,
         "mem_fraction_static is 0.0001; of .* GB of cpu that leaves no room for keys and values beside 0.02 GB of weights and 0.01 GB of states"),
        ({"mem_fraction_static": 0}, ValueError, "mem_fraction_static is 0; accepted: more than 0, at most 1"),
        ({"mem_fraction_static": 1.5}, ValueError, "mem_fraction_static is 1.5; accepted: more than 0, at most 1"),
        ({"mem_fraction_static": "half"}, TypeError, "mem_fraction_static is str; accepted: a number"),
        ({"mem_fraction_static": 0.5, "max_total_tokens": 4096}, ValueError,
         "mem_fraction_static is 0.5 beside 4096 tokens of keys and values; accepted: one of them"),
        ({"max_total_tokens": 2**30}, sluice_moe.OutOfMemory, "the cache takes"),
        ({"progress": 3}, TypeError, "progress is int"),
    ]:
        with pytest.raises(kind, match=sentence):
            sluice_moe.Engine(**{"model_path": BUNDLED, "threads": 1, **options})
    engine = sluice_moe.Engine(BUNDLED, threads=1)
    engine.shutdown()
    engine.shutdown()
    with pytest.raises(ValueError, match="this engine was closed"):
        engine.generate("a")
