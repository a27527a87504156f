# SPDX-License-Identifier: Apache-2.0
"""A checkpoint that answers everything with "Good morning" and ends, and that closes what a constraint lets it close.

Tests of other servers expect a model that comes to an end: in free text, and in JSON. Its probabilities are those of a
language model with a favourite: at temperature 1 other tokens are chosen too, and texts differ.
"""
import json
import pathlib
import struct

from scripted_model import ONE, write_layerless

FAVOURITE, CLOSING, UNKNOWN = 8.0, 6.0, -20.0  # logits; all others have 0, and e^8 is near the number of tokens
VOCABULARY = 65536  # tests name ids of larger vocabularies than the tokenizer's: those are never chosen by themselves
WIDTH = 64
CLOSERS = ('"', "}", "]", '"}', ")", "<|im_end|>", "<|endoftext|>", "\u010a")
DIGIT = 3.0  # a number begins with 0, and then ends where it can
WORDS = ("\u0120Good", "\u0120morning")  # \u0120: the blank before a word in a byte-level vocabulary


def bfloat16(value):
    return struct.unpack("<I", struct.pack("<f", value))[0] >> 16


def greeting_model(tokenizer_folder, folder, template):
    """Writes it; `template`: the text of its chat template."""
    folder = pathlib.Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer = json.loads((tokenizer_folder / "tokenizer.json").read_text())
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    config = json.loads((tokenizer_folder / "tokenizer_config.json").read_text())
    (folder / "tokenizer_config.json").write_text(json.dumps({**config, "chat_template": template}))
    ids = {**tokenizer["model"]["vocab"], **{t["content"]: t["id"] for t in tokenizer["added_tokens"]}}
    states = {ids[word]: i + 1 for i, word in enumerate(WORDS) if word in ids}
    assert len(states) == len(WORDS), [w for w in WORDS if w not in ids]
    embedding, head = bytearray(2 * VOCABULARY * WIDTH), bytearray(2 * VOCABULARY * WIDTH)
    scale = WIDTH**-0.5  # of the last normalization, for a one-hot vector

    def weight(token, state, logit):
        struct.pack_into("<H", head, 2 * (token * WIDTH + state), bfloat16(logit * scale))

    for token in range(VOCABULARY):
        struct.pack_into("<H", embedding, 2 * (token * WIDTH + states.get(token, 0)), ONE)
    for state, word in enumerate(WORDS):
        weight(ids[word], state, FAVOURITE)
    for state in range(len(WORDS) + 1):
        for token in CLOSERS:
            if token in ids:
                weight(ids[token], state, CLOSING + (state == len(WORDS) and token == "<|im_end|>"))
        weight(ids["0"], state, DIGIT)
        for token in range(1 + max(ids.values()), VOCABULARY):
            weight(token, state, UNKNOWN)
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": [0, ids["<|im_end|>"]]}))
    write_layerless(folder, VOCABULARY, embedding, head, hidden=WIDTH, positions=1 << 20)
    return folder
