# SPDX-License-Identifier: Apache-2.0
"""Log probabilities of prompts and answers, and scores."""
import numpy as np
import pytest

from engine_case import GREEDY, PROMPT
from engine_case import engine  # noqa: F401 - a fixture


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


def test_the_prompts_first_logprob_is_none_wherever_it_starts(engine):
    """SGLang's lists: one row for each token from logprob_start_len on, and at the prompt's end none."""
    ids = engine.encode(PROMPT)
    keys = ["input_token_logprobs", "input_top_logprobs", "input_token_ids_logprobs"]

    def lists(start, new_tokens=1):
        meta = engine.generate(input_ids=ids, sampling_params={**GREEDY, "max_new_tokens": new_tokens}, return_logprob=True,
                               logprob_start_len=start, top_logprobs_num=2, token_ids_logprob=[9, 8])["meta_info"]
        return [meta[key] for key in keys]

    chosen, top, named = lists(0)
    assert [token for _, token, _ in chosen] == ids and None not in [value for value, *_ in chosen[1:]]
    for new_tokens in (0, 1):
        for start in (0, 1, 4, len(ids) - 1):
            rows = lists(start, new_tokens)
            for row, first, all_rows in zip(rows, [(None, ids[start], None), None, None], [chosen, top, named]):
                assert row == [first, *all_rows[start + 1:]]
        assert lists(len(ids), new_tokens) == lists(-1, new_tokens) == [[], [], []]
    with pytest.raises(ValueError, match=f"logprob_start_len is {len(ids) + 1}; accepted: -1 to {len(ids)}"):
        lists(len(ids) + 1)


def test_tokens_of_logprobs_are_arrays(engine):
    def tokens(prompts, ids):
        answers = engine.generate(prompts, {**GREEDY, "max_new_tokens": 1}, return_logprob=True, token_ids_logprob=ids)
        return [[token for _, token, _ in a["meta_info"]["output_token_ids_logprobs"][0]]
                for a in (answers if isinstance(answers, list) else [answers])]

    assert tokens(PROMPT, np.array([0])) == [[0]] and tokens(PROMPT, np.array([9, 8])) == [[9, 8]]
    assert tokens([PROMPT, "The"], np.array([9, 8])) == [[9, 8]] * 2  # one value for both
    for ids in (np.array([[5, 6], [7, 8]]), [np.array([5, 6]), [7, 8]], [[5, 6], np.array([7, 8])]):
        assert tokens([PROMPT, "The"], ids) == [[5, 6], [7, 8]]
    for ids in (np.array([]), [], None):
        meta = engine.generate(PROMPT, {"max_new_tokens": 1}, return_logprob=True, token_ids_logprob=ids)["meta_info"]
        assert "output_token_ids_logprobs" not in meta


def test_texts_of_logprobs_hold_zero_characters(engine):
    zero = engine.encode("\0")[-1]
    answer = engine.generate(PROMPT, {**GREEDY, "max_new_tokens": 2, "logit_bias": {zero: 100}}, return_logprob=True,
                             top_logprobs_num=1, return_text_in_logprobs=True)
    meta = answer["meta_info"]
    assert answer["text"] == "\0\0" == engine.decode(answer["output_ids"])
    assert [text for *_, text in meta["output_token_logprobs"]] == ["\0"] * 2


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


def test_items_of_scores_are_arrays(engine):
    one = engine.score([5, 6], [7, 8], [9])
    assert len(one) == 1
    for items in (np.array([7, 8]), (np.int64(7), 8), [np.array([7, 8])], np.array([[7, 8]])):
        assert engine.score([5, 6], items, [9]) == one
    assert engine.score(np.array([5, 6]), np.array([[7, 8], [7, 8]]), np.array([9])) == one * 2
