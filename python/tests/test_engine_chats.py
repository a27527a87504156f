# SPDX-License-Identifier: Apache-2.0
"""Chats: the checkpoint's template, messages and tools as the server checks them, arguments of calls."""
import pytest

import sluice_moe
from engine_case import BUNDLED, GREEDY
from engine_case import engine  # noqa: F401 - a fixture


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
    with pytest.raises(TypeError, match="messages is an empty list; accepted: "):
        engine.chat([])
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


def test_texts_that_utf_8_cannot_hold(engine):
    """A lone surrogate is read as a question mark, by every call."""
    user = lambda content: [{"role": "user", "content": content}]
    assert engine.encode("a\ud800b") == engine.encode("a?b")
    assert engine.encode_chat(user("a\ud800b")) == engine.encode_chat(user("a?b"))
    assert engine.chat(user("a\ud800b"), {**GREEDY, "max_new_tokens": 3})["text"] == engine.chat(
        user("a?b"), {**GREEDY, "max_new_tokens": 3})["text"]
    assert engine.encode_chat(user("a"), note="\ud800", **{"\ud800": 1}) == engine.encode_chat(user("a"))
    for text in ("Gr\u00fc\u00dfe, \u2028 \U0001f600", "\0\x1f\x7f\"\\"):  # and others stay as they are
        assert engine.decode(engine.encode(text)) in engine.decode(engine.encode_chat(user(text)))


def test_numbers_that_json_cannot_hold(engine):
    chat = [{"role": "user", "content": "a"}]
    for value in (float("nan"), float("inf"), [1, float("-inf")]):
        for call in (lambda: engine.encode_chat(chat, budget=value),
                     lambda: engine.chat(chat, chat_template_kwargs={"budget": value})):
            with pytest.raises(ValueError, match=r"budget is .*(nan|inf)\]?, which cannot be written as JSON"):
                call()
    with pytest.raises(TypeError, match="budget cannot be written as JSON: Object of type object is not JSON serializable"):
        engine.encode_chat(chat, budget=object())
    with pytest.raises(ValueError, match="messages is .*nan.*, which cannot be written as JSON"):
        engine.encode_chat([{"role": "user", "content": "a", "weight": float("nan")}])


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
