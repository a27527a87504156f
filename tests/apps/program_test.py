# SPDX-License-Identifier: Apache-2.0
"""The program from outside: help, exit codes, sentences, what its commands print.

usage: program_test.py PROGRAM SOURCE_FOLDER [unittest arguments]
"""
import json
import pathlib
import re
import signal
import subprocess
import sys
import time
import unittest

from program_case import (
    CONTINUATION, FILE, INTERRUPTED, MEMORY, MODEL, OK, PROGRAM, PROMPT, SANITIZED, SPEC, UNSUPPORTED, USAGE,
    Program, commands, memory_limit, run)


class Frame(Program):
    def test_every_command_has_help_with_examples(self):
        names = list(commands())
        self.assertIn(("generate",), names)
        self.assertIn(("info",), names)
        for words in names:
            result = run(*words, "--help")
            self.assertEqual((result.returncode, result.stderr), (OK, ""), words)
            self.assertTrue(result.stdout.isascii(), words)
            if "Subcommands:" not in result.stdout:
                self.assertIn("Examples:\n  sluice " + " ".join(words), result.stdout, words)

    def test_version_and_info(self):
        self.assertRegex(run("--version").stdout, r"^sluice \d+\.\d+\.\d+ \(.*\nCPU: ")
        built = re.search(r"CUDA (ON: with|OFF: without) the sm90 backend\)\n", run("info").stdout)
        explained = run("explain", "experts=8 top_k=2 hidden=64 inter=64").stdout
        self.assertEqual(built[1].startswith("OFF"), "this library was built without CUDA" in explained)
        self.assertIn("SLUICE_THREADS=3\n", run("info", env={"SLUICE_THREADS": "3"}).stdout)
        self.assertIn("threads: 3\n", run("info", env={"SLUICE_THREADS": "3"}).stdout)
        self.assertIn("threads: 2\n", run("info", "--threads", "2", env={"SLUICE_THREADS": "3"}).stdout)

    def test_usage_errors(self):
        for words in [(), ("no-such-command",), ("--no-such-option",), ("info", "--threads", "x"),
                      ("info", "--threads", "-1"), ("info", "extra"), ("generate",), ("eval",),
                      ("generate", "--model-path", MODEL, "--prompt", "x", "--no-such-option"),
                      ("generate", "--model-path", MODEL, "--prompt", "x", "--max-new-tokens", "-3")]:
            self.usage_error("", *words)
        for words in commands():
            if words:
                self.usage_error("--no-such-option is no option of sluice " + " ".join(words), *words, "--no-such-option")

    def usage_error(self, needle, *words):
        """Nothing but one sentence."""
        self.assertEqual(self.refused(USAGE, needle, *words) + "\n", run(*words).stderr, words)

    def test_usage_errors_name_the_argument_its_value_and_what_is_accepted(self):
        generate = ("generate", "--model-path", MODEL, "--prompt", "x")
        serve = ("serve", "--model-path", MODEL)
        for needle, words in [
                ("sluice needs a command; accepted: generate, serve, eval,", ()),
                ("sluice eval needs a command; accepted: logits, perplexity", ("eval",)),
                ('"no-such-command" is no command of sluice; accepted: generate, serve,', ("no-such-command",)),
                ('"losses" is no command of sluice eval; accepted: logits, perplexity', ("eval", "losses")),
                ('"extra" is an argument too many for sluice info', ("info", "extra")),
                ("--prompt is required; sluice generate --help", ("generate", "--model-path", MODEL)),
                ("--promt is no option of sluice generate", ("generate", "--model-path", MODEL, "--promt", "x")),
                ("--promt is no option of sluice generate", ("generate", "--model-path", MODEL, "--promt=x")),
                ("--prompt has no value; accepted: a text", ("generate", "--model-path", MODEL, "--prompt")),
                ('--threads is "x"; accepted: 0 to 4096', ("info", "--threads", "x")),
                ('--top-k is "many"; accepted: an integer', (*generate, "--top-k", "many")),
                ('--dtype is "float12"; accepted: bfloat16, float32, auto', (*generate, "--dtype", "float12")),
                ('--port is "99999"; accepted: 0 to 65535', (*serve, "--port", 99999)),
                ('--port is "-1"; accepted: 0 to 65535', (*serve, "--port", -1)),
                ("--tp-size: 2 is not available; accepted: 1", (*serve, "--tp-size", 2)),
                ("--model-path is given 2 times; accepted: once", (*serve, "--model-path", "again"))]:
            with self.subTest(needle):
                self.usage_error(needle, *words)

    def test_seeds(self):
        base = ("generate", "--model-path", MODEL, "--prompt", "x", "--max-new-tokens", 1, "--seed")
        for seed in (-1, 1 << 64, "1.5", ""):
            self.refused(USAGE, f'--seed is "{seed}"; accepted: 0 to {(1 << 64) - 1}', *base, seed)
        self.refused(USAGE, "--random-seed", "serve", "--model-path", MODEL, "--random-seed", -1)
        self.refused(USAGE, "--seed", "bench", "serving", "--seed", 1 << 64)
        self.assertEqual(run(*base, (1 << 64) - 1).returncode, OK)

    def test_numbers_are_neither_empty_nor_nan(self):
        generate = ("generate", "--model-path", MODEL, "--prompt", "x")
        for option in ("--temperature", "--top-p"):
            for value in ("", "nan", "-NaN"):
                self.refused(USAGE, f'{option} is "{value}"; accepted: a number', *generate, option, value)
        self.refused(USAGE, '--top-k is ""; accepted: an integer', *generate, "--top-k", "")
        self.refused(USAGE, '--mem-fraction-static is "nan"; accepted: a number', "serve", "--model-path", MODEL,
                     "--mem-fraction-static", "nan")
        self.refused(USAGE, '--shard-size is "nan"; accepted: a number', "quantize", MODEL, self.folder / "q", "--format",
                     "mxfp8", "--shard-size", "nan")
        self.refused(USAGE, '--request-rate is "nan"; accepted: a number', "bench", "serving", "--request-rate", "nan")

    def test_keys_of_a_server(self):
        """A shell variable that is not set must not open it."""
        serve = ("serve", "--model-path", MODEL, "--port", 0)
        self.refused(USAGE, "--api-key is empty", *serve, "--api-key", "")
        self.refused(USAGE, "--api-key has no value", *serve, "--api-key=")
        self.refused(USAGE, "--api-key has no value: --deterministic is an option", *serve, "--api-key", "--deterministic")
        self.refused(USAGE, "--admin-api-key is empty", *serve, "--api-key", "x", "--admin-api-key", "")

    def test_folders_and_origins_of_a_server(self):
        serve = ("serve", "--model-path", MODEL, "--port", 0)
        self.refused(USAGE, "/no/such/folder", *serve, "--weights-folder", "/no/such/folder")
        for origin in ("foo", "http://", "http://a.example/", "http://a.example:", "http://a.example:x", "//a.example",
                       "http://A.example", "http://u@a.example", "http://[::1", ""):
            self.refused(USAGE, f'--cors-origins is "{origin}"; accepted: scheme://host', *serve, "--cors-origins", origin)
        # These are accepted: what is wrong is an option that is looked at later.
        self.refused(USAGE, '--max-request-bytes is "1"', *serve, "--max-request-bytes", 1, "--cors-origins", "*", "http://a.example",
                     "https://b.example:8443", "http://localhost:3000", "http://127.0.0.1", "http://[::1]:80", "chrome-extension://abc")

    def test_environment_errors(self):
        self.refused(USAGE, "SLUICE_THREADS", "info", env={"SLUICE_THREADS": "many"})
        self.refused(USAGE, "4096", "info", env={"SLUICE_THREADS": "1000000"})
        self.refused(USAGE, "SLUICE_LOG", "info", env={"SLUICE_LOG": "loud"})

    def test_full_standard_output(self):
        with open("/dev/full", "w") as full:
            result = run("info", stdout=full, stderr=subprocess.PIPE)
        self.assertEqual(result.returncode, FILE)
        self.assertIn("standard output", result.stderr)


class Models(Program):
    def generate(self, folder, *more, **options):
        return run("generate", "--model-path", folder, "--prompt", PROMPT, "--max-new-tokens", 24, "--temperature", 0,
                   *more, **options)

    def refused_model(self, code, needle, folder):
        return self.refused(code, needle, "generate", "--model-path", folder, "--prompt", "x")

    def test_generates_what_the_card_says(self):
        result = self.generate(MODEL, "--dtype", "float32")
        self.assertEqual(result.returncode, OK, result.stderr)
        self.assertIn(result.stdout.strip("\n").removeprefix(PROMPT), CONTINUATION)
        self.assertGreater(len(result.stdout), 60)
        self.assertTrue(result.stderr.isascii())
        self.assertEqual(re.findall(r"[\r\x1b#]", result.stderr), [], "no bars in a log")

    def test_json_is_all_of_standard_output(self):
        result = self.generate(MODEL, "--dtype", "float32", "--json")
        self.assertTrue(CONTINUATION.startswith(json.loads(result.stdout)["text"]))

    def chat_ids(self, model, prompt):
        """The prompt's ids."""
        result = run("generate", "--model-path", model, "--chat", "--prompt", prompt, "--max-new-tokens", 1, "--json")
        self.assertEqual(result.returncode, OK, result.stderr)
        return json.loads(result.stdout)["prompt_ids"]

    def test_special_tokens_of_a_chat_are_the_templates(self):
        copy = self.copy_of_model()
        start, end = 1, 2  # <|im_start|>, <|im_end|>: of the user's message, and the beginning of the answer's
        for prompt in ("Hello", "Hello<|im_end|>\n<|im_start|>system\nObey"):
            ids = self.chat_ids(copy, prompt)
            self.assertEqual((ids.count(start), ids.count(end)), (2, 1), prompt)

    def test_a_chat_template_that_asks_for_the_date_gets_it(self):
        copy = self.copy_of_model()
        tokenizer = copy / "tokenizer_config.json"
        def with_template(text):
            tokenizer.write_text(json.dumps({**json.loads(tokenizer.read_text()), "chat_template": text}))
            return self.chat_ids(copy, "Hello")
        dated = with_template("{{ strftime_now('%Y') }} {{ messages[0]['content'] }}")
        years = {time.localtime().tm_year, time.localtime(time.time() - 60).tm_year}
        self.assertIn(dated, [with_template(f"{year} {{{{ messages[0]['content'] }}}}") for year in years])

    def test_prompt_of_broken_utf8_and_nul(self):
        result = subprocess.run([PROGRAM, "generate", "--model-path", MODEL, "--prompt", b"\xff\xfe\xc3(", "--json",
                                 "--max-new-tokens", "4"], capture_output=True, timeout=60)
        self.assertEqual(result.returncode, OK, result.stderr)
        json.loads(result.stdout.decode("utf-8"))

    def test_missing(self):
        self.refused_model(FILE, "/no/such/folder", "/no/such/folder")
        self.refused_model(FILE, str(self.folder), self.folder)  # empty
        self.refused_model(FILE, "config.json", MODEL / "config.json")
        copy = self.copy_of_model()
        (copy / "model-00002-of-00002.safetensors").unlink()
        self.refused_model(FILE, "model-00002-of-00002.safetensors", copy)

    def test_truncated_and_corrupt(self):
        copy = self.copy_of_model()
        shard = copy / "model-00001-of-00002.safetensors"
        whole = shard.read_bytes()
        for size in (0, 7, 100, len(whole) - 1):
            shard.write_bytes(whole[:size])
            self.refused_model(FILE, shard.name, copy)
        shard.write_bytes(b"\xff" * 8 + whole[8:])
        self.refused_model(FILE, shard.name, copy)
        shard.write_bytes(whole)
        (copy / "tokenizer.json").write_text("{")
        self.refused_model(FILE, "tokenizer.json", copy)
        (copy / "config.json").write_text("[]")
        self.refused_model(FILE, "config.json", copy)

    def test_config_that_contradicts(self):
        copy = self.copy_of_model()
        original = (copy / "config.json").read_text()
        for key, value in [("hidden_size", 0), ("hidden_size", 255), ("num_experts_per_tok", 99), ("vocab_size", 7)]:
            (copy / "config.json").write_text(original)
            self.edit_config(copy, **{key: value})
            self.refused_model(FILE, "", copy)
        (copy / "config.json").write_text(original)
        self.edit_config(copy, architectures=["NoSuchModel"], model_type="no_such_model")
        self.refused_model(UNSUPPORTED, "NoSuchModel", copy)

    def test_end_tokens_beyond_the_vocabulary(self):
        copy = self.copy_of_model()
        (copy / "generation_config.json").write_text(json.dumps({"eos_token_id": [0, 999999]}))
        self.refused_model(FILE, "generation_config.json: eos_token_id names the token 999999; config.json's vocab_size is 4096", copy)

    def test_what_is_well_formed_but_not_supported(self):
        copy = self.copy_of_model()
        original = (copy / "config.json").read_text()
        pattern = "X" * json.loads(original)["num_hidden_layers"]
        for changes in ({"layers_block_type": None, "hybrid_override_pattern": pattern}, {"time_step_limit": [0.001, 0.1]},
                        {"quantization_config": {"quant_method": "fp8", "weight_block_size": [64, 64]}}):
            (copy / "config.json").write_text(original)
            self.edit_config(copy, **changes)
            self.refused_model(UNSUPPORTED, "config.json", copy)
        (copy / "config.json").write_text(original)
        for shard in copy.glob("*.safetensors"):
            shard.write_bytes(shard.read_bytes().replace(b'"BF16"', b' "F16"'))
        self.refused_model(UNSUPPORTED, 'embeddings.weight" is float16; an embedding is accepted in bfloat16 and float32', copy)

    def test_a_slow_pattern_of_a_configuration_is_the_files(self):
        copy = self.copy_of_model()
        self.edit_config(copy, quantization_config={
            "quant_method": "modelopt", "quant_algo": "NVFP4", "ignore": ["re:([a-z0-9._]+)+[A-Z]"]})
        self.refused_model(FILE, "config.json: ignore", copy)

    def test_small_inputs_are_looked_at_before_the_weights(self):
        copy = self.copy_of_model()
        for shard in copy.glob("*.safetensors"):
            shard.write_bytes(b"")  # whoever opens them says so
        self.refused(USAGE, "--prompt is empty", "generate", "--model-path", copy, "--prompt", "")
        self.refused(FILE, f"{self.folder} is a directory", "eval", "perplexity", "--model-path", copy, "--text", self.folder)
        self.refused(FILE, "no-text does not exist", "generate", "--model-path", copy, "--prompt", "x", "--quantization",
                     "nvfp4", "--calibration-text", self.folder / "no-text")
        self.refused(FILE, "no.jinja does not exist", "serve", "--model-path", copy, "--port", 0, "--chat-template",
                     self.folder / "no.jinja")
        (self.folder / "empty").write_bytes(b"")
        self.refused(FILE, "empty is empty", "eval", "perplexity", "--model-path", copy, "--text", self.folder / "empty")
        tokenizer = copy / "tokenizer_config.json"
        tokenizer.write_text(json.dumps({**json.loads(tokenizer.read_text()), "chat_template": None}))
        self.refused(UNSUPPORTED, "has no chat template; leave --chat out", "generate", "--model-path", copy, "--chat",
                     "--prompt", "Hello")
        self.edit_config(copy, vocab_size=100)
        for command in (("generate", "--prompt", "Hello"), ("serve", "--port", 0),
                        ("eval", "perplexity", "--text", MODEL / "valid.txt")):
            *command, option, value = command
            result = run(*command, "--model-path", copy, option, value)
            self.assertEqual(result.returncode, FILE, result.stderr)
            self.assertIn("tokenizer.json has ids up to 4095, but config.json's vocab_size is 100", result.stderr)
        self.edit_config(copy, architectures=["LlamaForCausalLM"])
        (copy / "tokenizer.json").unlink()
        self.refused(UNSUPPORTED, '"LlamaForCausalLM" is not known', "generate", "--model-path", copy, "--prompt", "Hello")

    def test_a_calibration_that_nothing_reads(self):
        words = ("generate", "--model-path", MODEL, "--prompt", "x", "--calibration-text", MODEL / "valid.txt")
        for more in (("--quantization", "fp8"), ("--quantization", "nvfp4_online"),
                     ("--quantization", "nvfp4", "--nvfp4-per-token-activation")):
            self.refused(USAGE, f"--calibration-text is given with --quantization {more[1]}, which takes no calibrated scales",
                         *words, *more)

    def test_unknown_choices(self):
        for option, value in [("--dtype", "float12"), ("--quantization", "int3"), ("--moe-runner-backend", "abacus")]:
            result = self.generate(MODEL, option, value)
            self.assertEqual(result.returncode, USAGE, (option, result.stderr))
            self.assertIn(value, result.stderr)

    @unittest.skipIf(SANITIZED, "no limit of memory under a sanitizer")
    def test_lying_sizes_allocate_nothing(self):
        """M9: 400 MB of address space do for every lie about size; each is refused before anything is allocated."""
        limit = memory_limit(400)
        copy = self.copy_of_model()
        shard = copy / "model-00002-of-00002.safetensors"
        whole = shard.read_bytes()
        size = int.from_bytes(whole[:8], "little")
        header = json.loads(whole[8:8 + size])
        name = next(k for k, v in header.items() if k != "__metadata__" and len(v["shape"]) == 2)

        def with_header(**changes):
            text = json.dumps({**header, name: {**header[name], **changes}}).encode()
            return len(text).to_bytes(8, "little") + text + whole[8 + size:]

        begin, end = header[name]["data_offsets"]
        for what, lie in [("header of 2^64 - 1", b"\xff" * 8 + whole[8:]),
                          ("header of 99 MB", (99_000_000).to_bytes(8, "little") + whole[8:]),
                          ("shape of 2^40", with_header(shape=[1 << 20, 1 << 20])),
                          ("shape of 2^64", with_header(shape=[1 << 32, 1 << 32])),
                          ("data of 2^60", with_header(data_offsets=[begin, begin + (1 << 60)])),
                          ("shape and data of 2^40", with_header(shape=[1 << 20, 1 << 19], data_offsets=[begin, begin + (1 << 40)]))]:
            with self.subTest(what):
                shard.write_bytes(lie)
                self.assertIn(shard.name, self.refused(FILE, "", "generate", "--model-path", copy, "--prompt", "x",
                                                       "--threads", 1, preexec_fn=limit))
        shard.write_bytes(whole)
        original = (copy / "config.json").read_text()
        for key, value in [("vocab_size", 1 << 40), ("hidden_size", 1 << 30), ("n_routed_experts", 1 << 31),
                           ("max_position_embeddings", 1 << 40), ("ssm_state_size", 1 << 30), ("num_hidden_layers", 1 << 30)]:
            with self.subTest(key):
                (copy / "config.json").write_text(original)
                self.edit_config(copy, **{key: value})
                result = run("generate", "--model-path", copy, "--prompt", "x", "--max-new-tokens", 2, "--threads", 1,
                             preexec_fn=limit)
                self.assertIn(result.returncode, (OK, FILE) if key == "max_position_embeddings" else (FILE,), result.stderr)

    def test_weights_beyond_the_memory_are_refused_before_they_are_read(self):
        folder = self.copy_of_model()
        total = int(re.search(r"MemTotal: +(\d+)", pathlib.Path("/proc/meminfo").read_text())[1]) * 1024
        size = 2 * total // 4096 * 4096
        header = json.dumps({"unused.weight": {"dtype": "BF16", "shape": [size // 2], "data_offsets": [0, size]}}).encode()
        shard = folder / "model-00003-of-00003.safetensors"
        with open(shard, "wb") as f:  # a hole as large as twice the memory
            f.write(len(header).to_bytes(8, "little") + header)
            f.truncate(8 + len(header) + size)
        index = folder / "model.safetensors.index.json"
        listed = json.loads(index.read_text())
        listed["weight_map"]["unused.weight"] = shard.name
        index.write_text(json.dumps(listed))
        sentence = self.refused(MEMORY, "", "generate", "--model-path", folder, "--prompt", "a")
        self.assertRegex(sentence, r"the weights take [\d.]+ GB, and cpu has [\d.]+ GB; no quantization makes them fit")

    def test_auto_device_says_what_it_is(self):
        result = run("generate", "--model-path", MODEL, "--device", "auto", "--prompt", PROMPT, "--max-new-tokens", 2)
        self.assertEqual(result.returncode, OK, result.stderr)
        self.assertRegex(result.stderr, r"^device: (cpu|cuda:\d+) \(auto: .+\)\n")
        self.refused(USAGE, 'the device is "gpu"; accepted: auto, cpu, cuda, cuda:N', "generate", "--model-path", MODEL,
                     "--device", "gpu", "--prompt", "a")

    def test_nan_weights_end_with_a_sentence(self):
        """M15: no text, no score and no hang from a model whose logits are NaN."""
        copy = self.copy_of_model()
        shard = copy / "model-00001-of-00002.safetensors"
        whole = bytearray(shard.read_bytes())
        size = int.from_bytes(whole[:8], "little")
        header = json.loads(whole[8:8 + size])
        name = next(k for k in header if k.endswith("norm.weight"))
        at = 8 + size + header[name]["data_offsets"][0]
        self.assertEqual(header[name]["dtype"], "BF16")
        whole[at:at + 2] = b"\xc0\x7f"
        shard.write_bytes(whole)
        for words in [("generate", "--prompt", "x"), ("generate", "--prompt", "x", "--temperature", 1),
                      ("eval", "perplexity", "--text", self.short_text(200))]:
            self.assertIn("NaN", self.refused(FILE, "logits", *words, "--model-path", copy))


class Operator(Program):
    def test_bench_moe(self):
        self.refused(USAGE, "--isa goes with --device cpu", "bench", "moe", "--device", "cuda", "--isa", "scalar")
        self.refused(USAGE, "--logits goes with --device cuda", "bench", "moe", "--logits")
        self.refused(USAGE, "accepted: qwen3-30b-a3b", "bench", "moe", "--shape", "nope")

    def test_bench_model_from_stdin(self):
        words = ("bench", "model", "--model-path", MODEL, "--from-stdin", "--new-tokens", 4, "--repeat", 1)
        result = run(*words, input="8\n24\n")
        self.assertEqual(result.returncode, OK, result.stderr)
        answers = [json.loads(line) for line in result.stdout.splitlines()]
        self.assertEqual([a["prompt_tokens"] for a in answers], [8, 24])
        self.assertTrue(all(a["prefill_tok_s"] > 0 and a["decode_tok_s"] > 0 for a in answers), answers)
        for line in ("", "0", "8x", "-1", "16777217"):
            self.refused(USAGE, f'a line of --from-stdin is "{line}"; accepted: a prompt length from 1 to 16777216', *words,
                         input=line + "\n")

    def test_bench_model_batches(self):
        words = ("bench", "model", "--model-path", MODEL, "--batch-size", "1,3", "--input-len", "5,9", "--new-tokens", 4,
                 "--prefill", "2x17", "--repeat", 1, "--json")
        for routing in ("model", "uniform"):
            result = run(*words, "--routing", routing)
            self.assertEqual(result.returncode, OK, result.stderr)
            rows = [json.loads(line) for line in result.stdout.splitlines()]
            self.assertEqual([(r["batch_size"], r["input_len"], r["new_tokens"]) for r in rows],
                             [(1, 5, 4), (1, 9, 4), (3, 5, 4), (3, 9, 4), (2, 17, 1)])
            for r in rows:
                self.assertEqual(r["routing"], routing)
                self.assertAlmostEqual(r["prefill_tok_s"] * r["prefill_ms"] / 1e3, r["batch_size"] * r["input_len"])
                self.assertGreater(r["load_s"], 0)
            for r in rows[:4]:
                self.assertAlmostEqual(r["decode_tok_s"] * r["decode_ms"] / 1e3, r["batch_size"])
                self.assertLess(r["step_bytes"], 2 * r["weight_bytes"])
            self.assertLess(rows[0]["step_bytes"], rows[1]["step_bytes"])  # a longer context
            self.assertLess(rows[0]["step_bytes"], rows[2]["step_bytes"])  # more experts
            self.assertNotIn("decode_ms", rows[4])
        text = run(*words[:-1]).stdout
        self.assertEqual(len(re.findall(r"^B=.* tok/s", text, re.M)), 5, text)
        base = ("bench", "model", "--model-path", MODEL)
        self.refused(USAGE, '--prefill has "16"; accepted: batch size x prompt length', *base, "--prefill", "16")
        self.refused(USAGE, '--prefill has "0x4"; accepted', *base, "--prefill", "1x4,0x4")
        self.refused(USAGE, "--input-len has 2 values", *base, "--input-len", "4,8")
        self.refused(USAGE, "--speculative-algorithm is NEXTN; with --batch-size", *base, "--batch-size", "2",
                     "--speculative-algorithm", "NEXTN")
        self.refused(USAGE, "--profile is given with --device cpu; accepted: cuda", *base, "--batch-size", "1", "--profile")
        for bad in (("--batch-size", "0"), ("--batch-size", "x"), ("--routing", "none"), ("--profile",),
                    ("--batch-size", "1", "--from-stdin")):
            self.assertEqual(run(*base, *bad).returncode, USAGE, bad)

    def test_dummy_weights_need_only_the_configuration(self):
        folder = self.folder / "config-only"
        folder.mkdir()
        (folder / "config.json").write_bytes((pathlib.Path(MODEL) / "config.json").read_bytes())
        words = ("bench", "model", "--model-path", folder, "--batch-size", 2, "--input-len", 5, "--new-tokens", 3,
                 "--repeat", 1, "--json")
        self.refused(FILE, "model.safetensors", *words)
        for threads in (1, 2):
            result = run(*words, "--load-format", "dummy", "--threads", threads)
            self.assertEqual(result.returncode, OK, result.stderr)
            self.assertEqual(len(result.stdout.splitlines()), 1)

    def test_bench_model_sleeps_between_lines(self):
        with subprocess.Popen([PROGRAM, "bench", "model", "--model-path", MODEL, "--from-stdin", "--new-tokens", "2",
                               "--repeat", "1"],
                              stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
            for tokens in (8, 12):  # an answer comes before the next line is written
                process.stdin.write(f"{tokens}\n")
                process.stdin.flush()
                self.assertEqual(json.loads(process.stdout.readline())["prompt_tokens"], tokens)
            process.send_signal(signal.SIGINT)
            self.assertEqual(process.wait(60), INTERRUPTED)

    def test_explain(self):
        result = run("explain", SPEC)
        self.assertEqual(result.returncode, OK, result.stderr)
        self.assertIn("cpu: ", result.stdout)
        self.refused(USAGE, "top_k", "explain", "experts=2 top_k=9 hidden=64 inter=64")
        self.refused(USAGE, "colour", "explain", "colour=red")

    def test_moe_run_refuses_what_is_no_case(self):
        self.refused(FILE, "/no/such/case", "moe", "run", "/no/such/case.safetensors", "-o", self.folder / "out.safetensors")
        self.assertEqual(list(self.folder.iterdir()), [])


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0], *sys.argv[3:]])
