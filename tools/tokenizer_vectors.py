#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Makes tests/text/data/tokenizer_vectors.json with Hugging Face's `tokenizers` (0.23).

Trains one tiny vocabulary for each family of pre-tokenizers and writes the tokenizer.json of each with the ids and
the decoded text of awkward strings. Deterministic: the same version of `tokenizers` writes the same file.

    pip install tokenizers==0.23.* && python3 tools/tokenizer_vectors.py tests/text/data/tokenizer_vectors.json
"""
import json
import random
import sys

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

GPT4 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
TEKKEN = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+"
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*"
    r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
DEEPSEEK_WORDS = (
    r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"
    r"| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


def split(pattern, behavior="isolated", invert=False):
    return pre_tokenizers.Split(pattern, behavior, invert)


def byte_level(use_regex=False, add_prefix_space=False):
    return pre_tokenizers.ByteLevel(add_prefix_space=add_prefix_space, use_regex=use_regex)


# name -> (normalizer, pre-tokenizer steps, BPE options)
FAMILIES = {
    "gpt2": (None, [byte_level(True, True)], {}),
    "llama3": (None, [split(Regex(GPT4)), byte_level()], {"ignore_merges": True}),
    "qwen": (normalizers.NFC(), [split(Regex(GPT4.replace("{1,3}", ""))), byte_level()], {}),
    "tekken": (None, [split(Regex(TEKKEN)), byte_level()], {"ignore_merges": True}),
    "deepseek": (
        None,
        [
            split(Regex(r"\p{N}{1,3}")),
            split(Regex("[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+")),
            split(Regex(DEEPSEEK_WORDS)),
            byte_level(),
        ],
        {},
    ),
    "digits": (normalizers.NFKC(), [pre_tokenizers.Digits(individual_digits=True), byte_level(True)], {}),
    "digit_runs": (normalizers.NFD(), [pre_tokenizers.Digits(individual_digits=False), byte_level(True)], {}),
    "merged": (
        normalizers.NFKD(),
        [
            split(" ", "merged_with_next"),
            split(Regex(r"[\.,]"), "merged_with_previous"),
            split(Regex(r"\w+"), "isolated", True),
            split(Regex(r"_"), "removed"),
            split(Regex(r"[aeiou]"), "contiguous"),
            byte_level(False, True),
        ],
        {},
    ),
}

CORPUS = [
    "The quick brown fox jumps over the lazy dog. It's 12345 or 3.14159, they'll say; WE'RE not sure.\n\n",
    "def f(x):\n    return x[0] + 1  # comment\n",
    "caf\u00e9 na\u00efve e\u0301 \u4f60\u597d\u4e16\u754c \u3053\u3093\u306b\u3061\u306f \ud55c\uad6d\uc5b4 \u041f\u0440\u0438\u0432\u0435\u0442 \u0645\u0631\u062d\u0628\u0627 \U0001f600\U0001f44d\U0001f3fd\u200d\U0001f680\n",
] * 3

ATOMS = (
    list("abcXYZ019 \t\n\r'.,;!?-_/#[](){}<>|")
    + ["the", " the", "'s", "'S", "'ll", "'\u017f", "'Re", "  ", "   ", "\r\n", "\n\n", " \n", "12", "1234", "3.14", "x=1"]
    + ["\u00e9", "e\u0301", "\u0301", "a\u0323\u0307", "a\u0307\u0323", "\u00df", "\u0130", "\u01c5", "\ufb01", "\u212b", "\u1e9b\u0323"]
    + ["\u4f60\u597d", "\u3042", "\u30a2", "\u9fa6", "\ud55c", "\u1112\u1161\u11ab", "\u0e2a\u0e27\u0e31", "\u0645\u0631", "\u0967\u0968", "\u2167", "\u00b2", "\u00bd"]
    + ["\u00a0", "\u2003", "\u3000", "\u0085", "\u2028", "\u180e", "\u200b", "\u200d", "\ufeff", "\u202f", "\u1680", "\x00", "\x1c", "\x7f"]
    + ["\U0001f600", "\U0001f44d\U0001f3fd", "\U0001d400", "\u20ac", "\u00a3", "\u201c", "\u2014", "\uff0c", "\uff5c", "\ufffd", "\u24b6"]
    + ["<|bos|>", "<|end|>", "<|user|>", "<word>", "<left>", "<right>", "<caf\u00e9>", "<cafe\u0301>", "<|end", "|>", "<\uff5cUser\uff5c>"]
)

ADDED = [
    AddedToken("<|end|>", special=True, normalized=False),
    AddedToken("<|end|>x", special=False, normalized=False),
    AddedToken("<|user|>", special=True, normalized=False),
    AddedToken("<\uff5cUser\uff5c>", special=False, normalized=False),
    AddedToken("<word>", single_word=True, normalized=False),
    AddedToken("<left>", lstrip=True, normalized=False),
    AddedToken("<right>", rstrip=True, normalized=False, special=True),
    AddedToken("<caf\u00e9>", normalized=True),
]

FIXED = ["", " ", "\n", "a", "  a   b    c", "A" * 40, " " * 17, " " * 9 + "x", "1" * 10, "a<word>b <word> <word>", "x  <left>  y  <right>  z",
         "<|end|>x<|end|>y", "I'm you're he'll THEY'VE it'S we'd don't '\u017f", "a.b,c a. b, _c_ d__e", "aeiouxyz aa bb"]


def texts(rng, count):
    out = list(FIXED)
    while len(out) < count:
        out.append("".join(rng.choice(ATOMS) for _ in range(rng.randint(1, 14))))
    return out


def train(name):
    normalizer, steps, options = FAMILIES[name]
    tokenizer = Tokenizer(models.BPE(**options))
    if normalizer:
        tokenizer.normalizer = normalizer
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(steps) if len(steps) > 1 else steps[0]
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=340, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), special_tokens=["<|bos|>"], show_progress=False
    )
    tokenizer.train_from_iterator(CORPUS, trainer)
    tokenizer.add_tokens(ADDED)
    tokenizer.add_special_tokens([t for t in ADDED if t.special])
    if name == "llama3":
        bos = tokenizer.token_to_id("<|bos|>")
        tokenizer.post_processor = processors.TemplateProcessing(single="<|bos|> $A", special_tokens=[("<|bos|>", bos)])
    return tokenizer


def main():
    rng = random.Random(20250601)
    result = {"texts": texts(rng, 105), "families": []}
    for name in FAMILIES:
        tokenizer = train(name)
        ids = [tokenizer.encode(t).ids for t in result["texts"]]
        tokenizer.encode_special_tokens = True
        plain_ids = [tokenizer.encode(t, add_special_tokens=False).ids for t in result["texts"]]
        result["families"].append(
            {
                "name": name,
                "tokenizer": json.loads(tokenizer.to_str()),
                "ids": ids,
                "plain_ids": [None if p == i else p for p, i in zip(plain_ids, ids)],
                "decoded": [tokenizer.decode(i, skip_special_tokens=False) for i in ids],
                "skipped": [tokenizer.decode(i, skip_special_tokens=True) for i in ids],
            }
        )
    for family in result["families"]:  # most decode to the text itself
        for key in ("decoded", "skipped"):
            family[key] = [None if d == t else d for d, t in zip(family[key], result["texts"])]
    with open(sys.argv[1], "w", encoding="ascii") as out:
        json.dump(result, out, ensure_ascii=True, separators=(",", ":"))
        out.write("\n")


if __name__ == "__main__":
    main()
