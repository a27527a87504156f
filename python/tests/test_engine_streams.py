# SPDX-License-Identifier: Apache-2.0
"""Requests under way: streams, asyncio, threads beside them, aborts, pauses, other weights, a full queue."""
import asyncio
import os
import threading
import time

import pytest

import sluice_moe
from engine_case import BUNDLED, CONTINUATION, GREEDY, PROMPT, wait_until_idle
from engine_case import engine  # noqa: F401 - a fixture
from sluice_moe._answers import Answer


def test_streams_grow(engine):
    for _ in range(20):  # a busy machine brings several tokens at once, or all of them
        texts = [a["text"] for a in engine.generate(PROMPT, {**GREEDY, "max_new_tokens": 48}, stream=True)]
        if len(texts) > 1:
            break
    assert len(texts) > 1 and texts[-1] == CONTINUATION
    assert all(b.startswith(a) and len(b) > len(a) for a, b in zip(texts, texts[1:]))


def test_a_stream_keeps_its_engine():
    params, lines = {**GREEDY, "max_new_tokens": 48}, []
    new = lambda: sluice_moe.Engine(BUNDLED, dtype="float32", threads=2, max_total_tokens=2048,
                                    log=lambda *line: lines.append(line))

    async def last():
        return [a async for a in await new().async_generate(PROMPT, params, stream=True)][-1]

    open_engines = sluice_moe.engine._open_engines
    before = set(open_engines)
    stream = new().generate(PROMPT, params, stream=True)
    assert len(set(open_engines)) == len(before) + 1
    for answer in (list(stream)[-1], asyncio.run(last())):
        assert answer["text"] == CONTINUATION and answer["meta_info"]["finish_reason"]["type"] == "length"
    assert set(open_engines) == before  # no longer than the streams
    new().generate(PROMPT, params, stream=True).close()
    assert set(open_engines) == before


def test_a_stream_that_is_left_is_cancelled(engine):
    stream = engine.generate(PROMPT, {**GREEDY, "max_new_tokens": 1500, "ignore_eos": True}, stream=True)
    next(stream)
    engine.pause_generation("in_place")  # so that it does not end by itself
    stream.close()
    try:
        wait_until_idle(engine)
    finally:
        engine.continue_generation()


def test_asyncio(engine):
    async def run():
        params = {**GREEDY, "max_new_tokens": 48}
        answers = await asyncio.gather(*(engine.async_generate(PROMPT, params) for _ in range(8)))
        assert {a["text"] for a in answers} == {CONTINUATION}
        for _ in range(20):
            texts = [a["text"] async for a in await engine.async_generate(PROMPT, params, stream=True)]
            if len(texts) > 1:
                break
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


def test_asyncio_makes_only_the_answers_that_are_read(engine, monkeypatch):
    """All those before the last take time in the event loop that grows with the square of their length."""
    made = []
    result = Answer.result
    monkeypatch.setattr(Answer, "result", lambda answer: made.append(answer) or result(answer))
    answers = asyncio.run(engine.async_generate([PROMPT, "The"], {**GREEDY, "max_new_tokens": 48, "ignore_eos": True, "n": 2}))
    assert [len(a["output_ids"]) for a in answers] == [48] * 4 and len(made) == 4


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
        while thread.is_alive() and not any("mine" in s.batch.rids for s in engine._streams):
            time.sleep(0.001)
        engine.abort_request("another")
        engine.abort_request("mine")
        thread.join()
        if answers[-1]["meta_info"]["finish_reason"]["type"] == "abort":
            break
    assert answers[-1]["meta_info"]["finish_reason"]["type"] == "abort"


def test_a_name_aborts_all_prompts_of_its_call(engine):
    engine.pause_generation("in_place")  # so that none ends by itself
    try:
        stream = engine.generate([PROMPT, "The"], {**GREEDY, "max_new_tokens": 1500, "ignore_eos": True}, rid=["p", "q"],
                                 stream=True)
        engine.abort_request("p")
    finally:
        engine.continue_generation()
    reasons = {a["meta_info"]["id"]: a["meta_info"]["finish_reason"] for a in stream}
    assert {name: reason["type"] for name, reason in reasons.items()} == {"p": "abort", "q": "abort"}


@pytest.mark.parametrize("prompts, rid, ids", [
    ("The", None, ["gen-{}-0", "gen-{}-1"]), ("The", "q", ["q-0", "q-1"]),
    (["The", PROMPT], "q", ["q-0-0", "q-0-1", "q-1-0", "q-1-1"]),
    (["The", PROMPT], ["p", "q"], ["p-0", "p-1", "q-0", "q-1"]),
])
def test_the_id_of_an_answer_aborts_its_call(engine, prompts, rid, ids):
    for i in range(len(ids)):
        number = next(engine._names) + 1 if rid is None else 0  # of the next call
        shown = [id.format(number) for id in ids]
        engine.pause_generation("in_place")  # so that none ends by itself
        try:
            stream = engine.generate(prompts, {**GREEDY, "max_new_tokens": 1500, "ignore_eos": True, "n": 2}, rid=rid,
                                     stream=True)
            engine.abort_request(shown[i])
        finally:
            engine.continue_generation()
        reasons = {a["meta_info"]["id"]: a["meta_info"]["finish_reason"] for a in stream}  # a step may still give tokens
        assert {name: reason["type"] for name, reason in reasons.items()} == dict.fromkeys(shown, "abort")


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
    for _ in range(20):  # the first one that is running after its first piece
        stream = engine.generate(PROMPT, {**GREEDY, "max_new_tokens": 48}, stream=True)
        first = next(stream)
        engine.pause_generation(mode)
        if first["meta_info"]["finish_reason"] is None:
            break
        engine.continue_generation()
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


def test_who_has_an_answer_does_not_find_it_counted(engine):
    for _ in range(50):
        engine.generate(PROMPT, {"max_new_tokens": 2})
        info = engine.get_server_info()
        assert (info["num_running_reqs"], info["num_queue_reqs"]) == (0, 0)


def test_a_full_queue():
    with sluice_moe.Engine(BUNDLED, threads=1, max_running_requests=1, max_queued_requests=1,
                           max_total_tokens=2048) as engine:
        streams = []
        with pytest.raises(sluice_moe.Busy, match="the queue is full"):
            for _ in range(8):
                streams.append(engine.generate(PROMPT, {"max_new_tokens": 1900, "ignore_eos": True}, stream=True))
        for stream in streams:
            stream.close()
