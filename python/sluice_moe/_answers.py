# SPDX-License-Identifier: Apache-2.0
"""The requests of one call, their answers, and the streams that bring them."""
from __future__ import annotations

import contextlib
import ctypes
import functools
import os
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator, Sequence
from typing import Any, Union

from . import _c_api, _library, errors
from ._callbacks import WAIT_MS, ProgressFn

Answers = Union["dict[str, Any]", "list[dict[str, Any]]"]


class Answer:
    """One answer, as its events so far give it."""

    def __init__(self, request: int, choice: int, number: int, batch: Batch) -> None:
        self.request, self.choice, self.number, self.batch = request, choice, number, batch
        self.text = ""
        self.ids: list[int] = []
        self.rows: list[Any] = []
        self.reason: dict[str, Any] | None = None
        self.usage: dict[str, Any] = {}

    def take(self, event: _c_api.Event) -> None:
        self.text += ctypes.string_at(event.text, event.text_bytes).decode(errors="replace")
        self.ids += event.tokens[:event.token_count]
        self.rows += [row_of(event.logprobs[i]) for i in range(event.logprob_count)]
        self.usage = {key: getattr(event, key) for key in ("cached_tokens", "drafted", "accepted", "verify_rounds",
                                                              "weight_updates")}
        if event.finish == _c_api.FINISH_STOP:
            matched = event.stop_string.decode() if event.stop_string is not None else event.stop_token
            self.reason = {"type": "stop", "matched": None if matched == -1 else matched}
        elif event.finish == _c_api.FINISH_LENGTH:
            self.reason = {"type": "length", "length": len(self.ids)}
        elif event.finish in (_c_api.FINISH_CANCELLED, _c_api.FINISH_TIMED_OUT):
            message = (event.error or b"the request was aborted").decode(errors="replace")
            self.reason = {"type": "abort", "message": message}
        elif event.finish == _c_api.FINISH_ERROR:
            raise errors.Error((event.error or b"the request failed in the model").decode(errors="replace"))

    def name(self) -> str:
        name = self.batch.names[self.request]
        return name if self.batch.requests[self.request].n == 1 else f"{name}-{self.choice}"

    def result(self) -> dict[str, Any]:
        batch, request = self.batch, self.batch.requests[self.request]
        meta: dict[str, Any] = {
            "id": self.name(), "finish_reason": self.reason,
            "prompt_tokens": len(batch.prompts[self.request]), "completion_tokens": len(self.ids),
            "cached_tokens": self.usage.get("cached_tokens", 0), "weight_version": batch.version_of(self.usage.get("weight_updates", 0)),
            "e2e_latency": time.perf_counter() - batch.began}
        if rounds := self.usage.get("verify_rounds"):
            drafted, accepted = self.usage["drafted"], self.usage["accepted"]
            meta |= {"spec_verify_ct": rounds, "spec_draft_token_num": drafted, "spec_accept_token_num": accepted,
                     "spec_accept_rate": accepted / max(drafted, 1), "spec_accept_length": 1 + accepted / rounds}
        if request.logprobs:  # without any of the prompt's its lists are empty: SGLang has the keys in every answer
            self._logprobs(meta, "input", batch.scores[self.request].rows, request)
            self._logprobs(meta, "output", self.rows, request)
            meta["output_token_logprobs_length"] = len(self.rows)
        out: dict[str, Any] = {"text": self.text, "output_ids": list(self.ids), "meta_info": meta}
        if batch.several:
            out["index"] = self.number
        return out

    def _logprobs(self, meta: dict[str, Any], which: str, rows: list[Any], request: _c_api.Request) -> None:
        decode = self.batch.decode

        def triple(value: float | None, token: int) -> tuple[float | None, int, str | None]:
            return value, token, None if decode is None else decode([token])

        chosen: list[Any] = [triple(*row[0]) for row in rows]
        top: list[Any] = [[triple(*pair) for pair in row[1]] for row in rows]
        named: list[Any] = [[triple(*pair) for pair in row[2]] for row in rows]
        if which == "input" and request.prompt_logprobs:
            # SGLang's lists begin with None wherever they start. The library has a row there, but for the prompt's first
            # token, as nothing comes before it.
            start = request.prompt_logprobs_from
            given = 0 if start == 0 else 1
            chosen[:given] = [triple(None, self.batch.prompts[self.request][start])]
            top[:given] = [None]
            named[:given] = [None]
        meta[f"{which}_token_logprobs"] = chosen
        if request.top_logprobs:
            meta[f"{which}_top_logprobs"] = top
        if request.logprob_token_count:
            meta[f"{which}_token_ids_logprobs"] = named


def row_of(token: _c_api.TokenLogprobs) -> tuple[Any, Any, Any]:
    def pairs(rows: Any, length: int) -> list[tuple[float, int]]:
        return [(rows[i].logprob, rows[i].token) for i in range(length)]
    return ((token.chosen.logprob, token.chosen.token), pairs(token.top, token.top_count),
            pairs(token.asked, token.asked_count))


class Scores:
    """The log probabilities of a prompt. The library gives them with the first choice alone, so the other choices wait for
    the last of them."""

    def __init__(self, wanted: bool) -> None:
        self.rows: list[Any] = []
        self.complete = not wanted
        self.held: dict[int, Answer] = {}  # by choice

    def take(self, event: _c_api.Event, answer: Answer) -> list[Answer]:
        """The answers that go on with an event of `answer`."""
        if self.complete:
            return [answer]
        if event.choice != 0:
            self.held[event.choice] = answer
            return []
        self.rows += [row_of(event.prompt_logprobs[i]) for i in range(event.prompt_logprob_count)]
        self.complete = event.token_count > 0 or event.finish != _c_api.FINISH_NONE
        if not self.complete:
            return []
        held, self.held = self.held, {}
        return [answer, *held.values()]


class Batch:
    """The requests of one call and their answers."""

    def __init__(self, several: bool, version_of: Callable[[int], str], decode: Callable[[list[int]], str] | None) -> None:
        self.several, self.version_of, self.decode = several, version_of, decode
        self.requests: list[_c_api.Request] = []
        self.prompts: list[Sequence[int]] = []
        self.names: list[str] = []
        self.rids: set[str] = set()
        self.scores: list[Scores] = []
        self.keep: list[Any] = []  # what the requests point to
        self.answers: dict[tuple[int, int], Answer] = {}
        self.began = time.perf_counter()

    def add(self, request: _c_api.Request, prompt: Sequence[int], name: str) -> None:
        self.requests.append(request)
        self.prompts.append(prompt)
        self.names.append(name)
        self.rids.add(name)
        self.scores.append(Scores(bool(request.prompt_logprobs)))
        for choice in range(request.n):
            answer = Answer(len(self.requests) - 1, choice, len(self.answers), self)
            self.answers[answer.request, choice] = answer
            self.rids.add(answer.name())  # what the answer shows
        self.several = self.several or len(self.answers) > 1

    def take(self, event: _c_api.Event) -> list[Answer]:
        """The answers that go on with an event."""
        answer = self.answers[event.request, event.choice]
        answer.take(event)
        scores: Scores = self.scores[event.request]
        return scores.take(event, answer)

    def result(self) -> Answers:
        """In the order of the prompts, each with its choices."""
        answers = [self.answers[key].result() for key in sorted(self.answers)]
        return answers if self.several else answers[0]


class Stream:
    """Requests in the engine of a handle, which it keeps. Destroying it cancels what is unfinished. wake: a descriptor that
    the library writes to; it is closed with the stream, which may be later than close() where another thread cancels it."""

    def __init__(self, engine: _library.Handle, batch: Batch, wake: int = 0) -> None:
        self.batch = batch
        requests = (_c_api.Request * len(batch.requests))(*batch.requests)
        self._handle = _library.Handle(
            "request", lambda out: _library.call("sluice_engine_submit", engine.get(), requests, len(requests), wake, out),
            "sluice_stream_destroy", keep=engine, after=functools.partial(os.close, wake) if wake else None)
        batch.keep.clear()

    def next(self, timeout_ms: int) -> tuple[int, list[Answer]]:
        """1 and the answers that went on; 0 when nothing came in time; 2 when all answers are complete."""
        event, state = _c_api.Event(), ctypes.c_int32()
        _library.call("sluice_stream_next", self._handle.get(), timeout_ms, event, state)
        return state.value, self.batch.take(event) if state.value == _c_api.STREAM_EVENT else []

    def cancel(self) -> None:
        """Does nothing to a stream that its reader has closed."""
        _library.load().sluice_stream_cancel(self._handle.get_open())  # the library takes NULL, too

    def close(self) -> None:
        self._handle.close()


def finish(stream: Stream, progress: ProgressFn | None) -> Answers:
    done, total = 0, len(stream.batch.answers)
    try:
        while True:
            state, answers = stream.next(WAIT_MS)
            if state == _c_api.STREAM_DONE:
                return stream.batch.result()
            if progress is not None and (ended := sum(a.reason is not None for a in answers)):
                done += ended
                progress("generating", done, total, "answers")
    finally:
        stream.close()


def iterate(stream: Stream) -> Iterator[dict[str, Any]]:
    try:
        while True:
            state, answers = stream.next(WAIT_MS)
            if state == _c_api.STREAM_DONE:
                return
            for answer in answers:
                yield answer.result()
    finally:
        stream.close()


class AsyncStream:
    """The same in an event loop, which watches a descriptor that the library writes to."""

    def __init__(self, submit: Callable[[int], Stream]) -> None:
        self._wake = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        try:
            self._stream = submit(self._wake)
        except BaseException:
            os.close(self._wake)
            raise

    async def finish(self) -> Answers:
        async with contextlib.aclosing(self._events()) as events:
            async for _ in events:
                pass
        return self._stream.batch.result()

    async def iterate(self) -> AsyncIterator[dict[str, Any]]:
        async with contextlib.aclosing(self._events()) as events:
            async for answers in events:
                for answer in answers:
                    yield answer.result()

    async def _events(self) -> AsyncGenerator[list[Answer], None]:
        """Which answers went on, event by event."""
        import asyncio
        loop, awake = asyncio.get_running_loop(), asyncio.Event()

        def wake() -> None:
            os.eventfd_read(self._wake)  # here: the loop would find it readable once more before the task runs
            awake.set()

        loop.add_reader(self._wake, wake)
        try:
            while True:
                awake.clear()
                state, answers = self._stream.next(0)
                if state == _c_api.STREAM_DONE:
                    return
                if state == _c_api.STREAM_EVENT:
                    yield answers
                else:
                    await awake.wait()
        finally:
            loop.remove_reader(self._wake)
            self._stream.close()
