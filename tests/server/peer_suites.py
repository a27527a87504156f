# SPDX-License-Identifier: Apache-2.0
"""The tests that SGLang and vLLM have for their own servers, run against `sluice serve`.

    python3 -m venv V && V/bin/pip install pytest pytest-asyncio pytest-timeout openai anthropic requests aiohttp "httpx[http2]" \\
        transformers jsonschema numpy prometheus_client regex tiktoken pybase64 psutil fastapi schemathesis msgpack pyzmq mcp openai-harmony jinja2 rapidfuzz
    V/bin/python tests/server/peer_suites.py PROGRAM . --sglang CHECKOUT --vllm CHECKOUT --report bench/results/serve_suites.md

A checkout is the other project's repository (of vLLM, the source archive on PyPI will do). Nothing of theirs is in here but the
names of their tests; peer_stand_ins.py gives these what they import. Two checkpoints answer: greeting_model.py's, which comes to
an end, and the bundled trained one, where a test needs a text that goes on. A test that updates weights finds the trained one with
another embedding under its model's name without -Instruct.

A test that does not pass is one of these, and the list REASONS says why; what it does not name is a failure, and so is every test
that shows an answer 500, a broken connection or a timeout (BROKEN), unless the list names just that:
  refused  the server does it otherwise, or not at all, as docs/compatibility.md says
  model    a small model cannot: it would have to know an answer or follow an instruction
  n/a      the test is not about a server (it calls the other project's classes), or about LoRA, images, embeddings, GPUs
"""
import argparse
import collections
import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
from checkpoint_bytes import other_weights  # noqa: E402
from greeting_model import greeting_model  # noqa: E402
from scripted_model import TOOL_TEMPLATE  # noqa: E402
from serve_driver import endless_model  # noqa: E402

SGLANG = """
openai_server/basic/test_openai_server openai_server/basic/test_anthropic_server openai_server/basic/test_http2_server
openai_server/features/test_json_mode openai_server/features/test_openai_server_ebnf
openai_server/features/test_openai_server_hidden_states openai_server/function_call/test_openai_function_calling
openai_server/function_call/test_anthropic_tool_use openai_server/validation/test_request_length_validation
openai_server/validation/test_openai_server_ignore_eos openai_server/validation/test_matched_stop
openai_server/validation/test_large_max_new_tokens core/test_srt_endpoint constrained_decoding/test_constrained_decoding
scheduler/test_scheduler_control scheduler/test_priority_scheduling scheduler/test_abort_with_metrics
scheduler/test_load_snapshot_server scheduler/test_routing_key_scheduling scheduler/test_retract_decode
sampling/test_penalty sampling/test_sampling_mask rl/test_update_weights_from_disk
rl/test_update_weights_from_tensor rl/test_update_weights_from_distributed rl/test_weight_checker_e2e
rl/test_return_routed_experts rl/test_pause_generation_tensor_consistency rl/test_release_memory_occupation
observability/test_metrics observability/test_priority_metrics tokenizer/test_multi_tokenizer
tokenizer/test_multi_detokenizer tokenizer/test_skip_tokenizer_init
manual:openai_server/function_call/test_tool_choice manual:openai_server/features/test_structural_tag
manual:openai_server/features/test_cache_report manual:openai_server/features/test_continuous_usage_stats
manual:entrypoints/http_server/test_abort_request
""".split()
VLLM = """
openai/chat_completion/test_chat openai/chat_completion/test_chat_completion openai/chat_completion/test_chat_echo
openai/chat_completion/test_completion_with_function_calling openai/chat_completion/test_logprob_token_ids
openai/chat_completion/test_chat_logit_bias_validation openai/chat_completion/test_include_reasoning
openai/chat_completion/test_batched_chat_completions openai/chat_completion/test_enable_force_include_usage
openai/chat_completion/test_extra_content_fields openai/chat_completion/test_thinking_token_budget
openai/chat_completion/test_root_path openai/completion/test_completion openai/completion/test_prompt_validation
openai/completion/test_token_in_token_out openai/models/test_models openai/responses/test_simple openai/responses/test_basic
openai/responses/test_errors openai/responses/test_function_call openai/responses/test_stateful
openai/responses/test_structured_output openai/responses/test_sampling_params openai/test_return_token_ids
openai/test_return_tokens_as_ids openai/test_chunked_prompt openai/test_openai_schema anthropic/test_messages
serve/tokenize/test_tokenization serve/instrumentator/test_basic serve/instrumentator/test_metrics
serve/instrumentator/test_orca_metrics serve/middleware/test_optional_middleware launchers/test_shutdown
rl/state_transitions/test_sleep rl/return_routed_experts/test_openai_api tool_parsers/test_hermes_tool_parser
tool_parsers/test_openai_tool_parser
""".split()
GOES_ON = re.compile("update_weights_from_disk|test_penalty|matched_stop|routed_experts|test_abort|ignore_eos|priority|retract")
# Whose tests look a tenth of a second or a second after they have asked for answers of 500 tokens, and want some to be still
# running: a model that does not end, and one answer at once.
UNENDING = re.compile("test_scheduler_control|instrumentator/test_metrics")

# How pytest, unittest and the clients (openai, requests, httpx, aiohttp, urllib, schemathesis) word an answer 500, a connection that
# the server ended or did not take, and a timeout. openai's InternalServerError is also a 503's, so its code is looked at.
BROKEN = re.compile(r"\[500\]|Error code: 500|HTTP Error 500|500,? (Server Error|Internal Server Error|message=)|internal_error|"
                    r"\b500 (!=|==) [1-5]\d\d\b|\b[1-5]\d\d (!=|==) 500\b|\b500 (not )?(in|found in) [\[({]|status\w*\W{1,3}500\b|"
                    r"Connect(ion)?\w*Error|Connection error|[Cc]onnection (refused|reset|aborted|closed)|[Cc]losed connection|Disconnected|"
                    r"RemoteProtocolError|ReadError|IncompleteRead|ChunkedEncodingError|ClientPayloadError|BrokenPipe|"
                    r"Timeout(Error|Exception)|(Read|Connect|Write|Pool)Timeout|[Tt]imed out|Timeout \(?>")
# (pattern of a test's id and of what it said, kind, why): the first that fits. Of what is BROKEN it has to name that.
REASONS = [
    (r"local_asset_server", "n/a", "images"),
    (r"LoRA|lora", "n/a", "LoRA adapters"),
    (r"granian", "n/a", "HTTP/2, which a proxy gives"),
    (r"watermark", "n/a", "watermarks of the text"),
    (r"EAGLE|STANDALONE|NGRAM", "n/a", "other drafts than the checkpoint's own layer"),
    (r"hidden.states", "refused", "hidden states are not given out"),
    (r"is-embedding|Score|Rerank|score|rerank", "refused", "scores, embeddings and reranking: the models here make text"),
    (r"pythonic|granite|llama4|mistral|internlm|lfm2", "n/a", "formats of calls of models that are not served here"),
    (r"custom_logit_processor|CustomLogitProcessor", "refused", "custom logit processors are code of a request"),
    (r"Responses.*prompt_tokens", "refused", "the usage of /v1/responses has OpenAI's names"),
    (r"/v1/responses.*prompt_tokens|ResponseUsage", "refused", "the usage of /v1/responses has OpenAI's names"),
    (r"max_completion_tokens is too large", "refused", "the error names the request's own field: max_tokens"),
    (r"out-of-vocabulary", "refused", "400 with another sentence for an id that is not in the vocabulary"),
    (r"400 != 500", "refused", "400, where the other server answers 500"),
    (r"custom_role", "refused", "roles that templates do not know"),
    (r"in_messages_system_role", "refused", "a system message among Anthropic's messages: it has a field of its own, system"),
    (r"invocations", "refused", "no SageMaker container"),
    (r"weight_checker_e2e.*(400|message|missing|checksums)", "refused",
     "/weights_checker: the action checksum alone, with SHA-256 of the checkpoint's own tensors"),
    (r"routed_experts.*reshape", "n/a", "counts the layers and experts of its own model"),
    (r"start_len_with_cache_hit", "refused", "the prefix cache is not used where experts are asked for: what does not run has none"),
    (r"start_len_exceeds", "refused", "400 with another sentence"),
    (r"sampling_mask", "refused", "return_sampling_mask: the sampler does not hand out which tokens top-k and top-p left"),
    (r"Long running|long runtime", "n/a", "23 million tokens, which the other project's own CI leaves out too"),
    (r"test_update_weights_from_tensor.*fixture", "n/a", "a function that the file's tests call, which pytest takes for one"),
    (r"test_stateful", "refused", "/v1/responses remembers nothing: no fetching, cancelling, background or going on by an id"),
    (r"enable_response_messages", "refused", "enable_response_messages: the tokens of the messages are not given out"),
    (r"test_logprob_token_ids.*(5000\} == \{|5000\}$)", "refused", "top_logprobs of named tokens are those alone: the chosen token is given beside them"),
    (r"test_tokenization.*(token_strs|400 Client)", "refused", "return_token_strs; add_special_tokens beside messages, whose template has them"),
    (r"test_tokenization.*'text'", "refused", "/detokenize answers text, SGLang's name"),
    (r"tokenizer_info", "refused", "no /tokenizer_info: the checkpoint's tokenizer.json has it"),
    (r"conflicting_defs", "refused", "tools may define one name differently: each has its own schema"),
    (r"error_handling_invalid_tool|invalid_json_schema_in_tool", "refused", "400 with another sentence"),
    (r"selective_abort.*404 != 200", "model", "the text has to take longer than a tenth of a second"),
    (r"multi_tool_scenario", "model", "the model has to decide on a call"),
    (r"priority_metrics.*priority", "refused", "metrics are not split by priority"),
    (r"KeyError: 'routed_experts'", "refused", "routed experts are in /generate"),
    (r"Expected at least 2 child processes", "n/a", "looks for child processes: this server is one"),
    (r"Missing metric|Did not find vllm:", "refused", "metrics of the other server's own parts (grammar queue, routing keys, tokens of an iteration)"),
    (r"rust_frontend_version", "refused", "/version has the version alone"),
    (r"test_no_request_id_header", "refused", "every answer has X-Request-Id"),
    (r"test_v2_endpoint", "n/a", "/v2/embed, of models that make vectors"),
    (r"test_sleep_mode .*404", "refused", "/sleep and /wake_up: /release_memory_occupation and /resume_memory_occupation"),
    (r"run_batch", "n/a", "starts the other project's program itself"),
    (r"output does not look like Spanish", "model", "the text itself is checked"),
    (r"cache_report.*KeyError: 'meta_info'", "n/a", "names a token id that is in no small vocabulary"),
    (r"cache_report", "refused", "a prefix is cached in whole pages; the other server's have one token"),
    (r"/v1/completions.*openapi|openapi_stateless", "refused", "no /openapi.json"),
    (r"test_return_tokens_as_ids.*(\[True\])", "refused", "--return-tokens-as-token-ids: a request has the field"),
    (r"test_return_tokens_as_ids.*\[False\]", "model", "its tokens are not those that its text is cut into"),
    (r"test_logprob_with_chunked_prefill.*!= 4", "model", "the text has to go on, or not to be empty"),
    (r"test_comparison_with_prompt_logprobs", "model", "the text has to end by itself, or not to"),
    (r"test_reasoning_item|reasoning_tokens_e2e", "model", "the model has to think"),
    (r"test_simple.py.*test_max_tokens|test_extra_sampling_params.*0 > 0", "model", "the text has to go on, or not to be empty"),
    (r"responses/test_basic.*(test_streaming.*assert False|out of range)", "model", "the text has to go on, or not to be empty"),
    (r"responses/test_basic.*(in '|assert ')", "model", "the text itself is checked"),
    (r"test_structured_output", "model", "the text itself is checked"),
    (r"forced_tool_choice.*== ''|test_function_tool_use.required", "refused", "a model may say something before a call that must come"),
    (r"expected_arguments|forced_tool_choice|streaming_types|chat_completion_with_tool_use|anthropic_tool_call|openai_tool_parser.*(No tool calls|not called)", "model",
     "the model has to decide on a call"),
    (r"anthropic_streaming_cache_usage", "model", "its vocabulary makes more tokens of a prompt than the context of 2048 has"),
    (r"test_anthropic_streaming", "refused", "the usage of message_start counts the first token, as Anthropic's"),
    (r"orca", "refused", "no header endpoint-load-metrics: /metrics and /v1/loads have the numbers"),
    (r"test_server_load", "refused", "/load: /v1/loads has the numbers"),
    (r"'prompt_token_ids' in", "refused", "prompt_token_ids are there only when asked for"),
    (r"test_shutdown_on_engine_failure", "n/a", "starts the other project's program itself"),
    (r"include_reasoning|reasoning_content by default", "refused", "include_reasoning: false, and thoughts under the name reasoning"),
    (r"attribute 'reasoning'|delta.reasoning|no attribute 'prompt_logprobs'", "refused", "reasoning is named reasoning_content; prompt_logprobs is there only when asked for"),
    (r"test_chat_streaming|completion_stream_options", "refused", "a stream's end is a chunk of its own, as OpenAI sends it"),
    (r"test_single_chat_session", "refused", "usage has completion_tokens_details, as OpenAI's"),
    (r"test_logprob_grammar", "refused", "log probabilities are those before the constraint"),
    (r"stop_regex|finish_stop_regex", "refused", "stop_regex"),
    (r"force_include_usage", "refused", "--enable-force-include-usage: requests ask for it by stream_options"),
    (r"test_finish_(stop_eos|stop_str|length)", "model", "the text has to end by itself, or to have a line break"),
    (r"prompt_embeds|get_hidden_size", "n/a", "prompts as embeddings"),
    (r"test_check_models", "n/a", "LoRA adapters"),
    (r"test_(waiting|running)_timeout", "n/a", "set by the other server's environment; here --queue-timeout and a request's own"),
    (r"Expected tool_use", "model", "the model has to decide on a call"),
    (r"test_logprob_start_len|pause_resume_in_place.*exception=0 not greater", "model", "the text has to go on, or not to be empty"),
    (r"json_constrained_kit", "n/a", "names a token id that is in no small vocabulary"),
    (r"truncate_prompt_tokens is not|use_beam_search is not", "refused", "truncate_prompt_tokens, use_beam_search"),
    (r"duplicate_rid_concurrent|Duplicate request ID|Regex pattern did not match", "refused", "400 with another sentence"),
    (r"test_(ebnf|regex)_generate_.*(does not match|AssertionError: Text ')|'stop' == 'length'", "model", "the text has to end by itself, or not to"),
    (r"kv_transfer", "refused", "kv_transfer_params: prefill and decode are not split"),
    (r"per_request_metrics", "refused", "metrics in an answer: it has timings"),
    (r"'echo'|echo is not supported", "refused", "echo in chats"),
    (r"logprobs is -1", "refused", "log probabilities of the whole vocabulary: at most 20"),
    (r"named_tool_use", "refused", "a model may say something before a call that must come"),
    (r"function_tool_use.*plain-True-(required|tool_choice2)", "refused", "thoughts are reasoning_content, not reasoning"),
    (r"test_large_max_new_tokens.*Timeout \(>", "n/a", "waits for words of the other server's log"),
    (r"multiple_non_integer_keys", "refused", "an error names the first wrong key, not all of them"),
    (r"Expected a BaseException type|'Absent'", "n/a", "calls classes of the other project"),
    (r"response_prefill|complex_message_content|response_format_json|structured_outputs_json_chat|more_than_one_prompt_logprobs",
     "model", "the text itself is checked"),
    (r"function_call_strict|function_calling_format|function_calling_streaming|function_tool_use.*auto|no_args_tool_call",
     "model", "the model has to decide on a call"),
]


def without_end(folder):
    """Takes the end tokens from a copy of a model: every answer goes on to its limit."""
    for name in ("config.json", "generation_config.json"):
        values = json.loads((folder / name).read_text())
        (folder / name).unlink()
        (folder / name).write_text(json.dumps({k: v for k, v in values.items() if k != "eos_token_id"}))
    return folder


def files(o):
    for name in SGLANG if o.sglang else ():
        where = "manual" if name.startswith("manual:") else "registered"
        yield "SGLang", o.sglang, f"test/{where}/{name.removeprefix('manual:')}.py"
    for name in VLLM if o.vllm else ():
        yield "vLLM", o.vllm, f"tests/entrypoints/{name}.py"


def run(o, work, who, checkout, file):
    """[{test, outcome, why}] of a file."""
    results = work / "results.jsonl"
    results.unlink(missing_ok=True)
    model = "unending" if UNENDING.search(file) else "trained" if GOES_ON.search(file) else "greeting"
    env = {**os.environ, "PEER_PROGRAM": str(o.program), "PEER_MODEL": str(work / model), "PEER_TEMPLATE": str(work / "tools.jinja"),
           "PEER_OTHER_MODEL": str(work / "other"),
           "PEER_WHO": who, "PEER_SGLANG": str(o.sglang or ""), "PEER_VLLM": str(o.vllm or ""), "PEER_LOG": str(work / "servers.log"),
           "PEER_RESULTS": str(results), **({"PEER_AT_ONCE": "1"} if UNENDING.search(file) else {}),
           "PYTHONPATH": str(pathlib.Path(__file__).resolve().parent)}
    words = [sys.executable, "-m", "pytest", "-p", "peer_stand_ins", "-q", "--tb=short", "-o", "asyncio_mode=auto", "-p", "no:cacheprovider",
             f"--timeout={o.seconds}", *(["--confcutdir=tests/entrypoints"] if who == "vLLM" else []), file]
    try:
        with (work / "pytest.log").open("a") as log:
            subprocess.run(words, cwd=checkout, env=env, stdout=log, stderr=log, timeout=30 * o.seconds)
    except subprocess.TimeoutExpired:
        pass
    return [json.loads(line) for line in results.read_text().splitlines()] if results.exists() else []


def kind_of(result):
    if result["outcome"] == "passed":
        return "passed", ""
    test = result["test"] + " " + result["why"]
    # A test that wants 500 and gets 400 is no sign of a fault: REASONS has it.
    broken = result["outcome"] == "failed" and BROKEN.search(re.sub(r"\b400 (!=|==) 500\b", "", result["why"]))
    for pattern, kind, why in REASONS:
        found = re.search(pattern, test, re.S)
        if found and (not broken or BROKEN.search(found[0])):
            return kind, why
    if result["outcome"] == "skipped":
        return "n/a", re.sub(r"^Skipped: ", "", result["why"])
    last = result["why"].splitlines()[-1] if result["why"] else "?"
    return "failed", re.sub(r"^/\S+: ", "", last)[:300]


def version(checkout):
    info = checkout / "PKG-INFO"
    if info.is_file():
        return "release " + re.search(r"^Version: (\S+)", info.read_text(errors="replace"), re.M)[1]
    commit = subprocess.run(["git", "-C", checkout, "rev-parse", "HEAD"], capture_output=True, text=True).stdout.strip()
    return "commit " + commit if commit else "unknown"


def table(who, rows):
    out = [f"\n## {who}\n", "| file | tests | passed | refused | model | n/a | failed |", "|---|---|---|---|---|---|---|"]
    total, reasons = collections.Counter(), collections.defaultdict(list)
    for file, results in rows:
        counts = collections.Counter()
        for r in results:
            kind, why = kind_of(r)
            counts[kind] += 1
            if kind != "passed":
                reasons[kind, why].append(r["test"].rpartition("::")[2].partition("[")[0])
        total += counts
        out.append(f"| {file} | {len(results)} | " + " | ".join(str(counts[k]) for k in ("passed", "refused", "model", "n/a", "failed")) + " |")
    out.append(f"| all | {total.total()} | " + " | ".join(str(total[k]) for k in ("passed", "refused", "model", "n/a", "failed")) + " |")
    for kind, title in (("failed", "Failed"), ("refused", "Refused, or done otherwise"), ("model", "Beyond a small model"), ("n/a", "Not applicable")):
        some = {why: tests for (k, why), tests in reasons.items() if k == kind}
        if some:
            out.append(f"\n{title}:\n")
            for why, tests in sorted(some.items(), key=lambda x: -len(x[1])):
                names = list(dict.fromkeys(f"`{t}`" for t in tests))
                more = f" and {len(names) - 6} more" if len(names) > 6 else ""
                out.append(f"- {len(tests)}: {why} ({', '.join(names[:6])}{more})")
    return "\n".join(out)


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("program", type=lambda s: pathlib.Path(s).resolve())
    p.add_argument("source", type=lambda s: pathlib.Path(s).resolve(), help="the source folder, for the bundled model")
    p.add_argument("--sglang", type=lambda s: pathlib.Path(s).resolve())
    p.add_argument("--vllm", type=lambda s: pathlib.Path(s).resolve())
    p.add_argument("--only", default="", help="a pattern of files")
    p.add_argument("--seconds", type=int, default=120, help="limit of one test")
    p.add_argument("--results", type=lambda s: pathlib.Path(s).resolve(), help="keep what each test did there, and take from there what has run")
    p.add_argument("--no-run", action="store_true", help="report what --results has, and name the files that it has not")
    p.add_argument("--report", type=pathlib.Path)
    o = p.parse_args()
    bundled = o.source / "models" / "tiny-nemotron-h"
    kept = {}
    if o.results and o.results.exists():
        kept = json.loads(o.results.read_text())
    rows, missing = collections.defaultdict(list), []
    with tempfile.TemporaryDirectory(prefix="sluice-peers-") as folder:
        work = pathlib.Path(folder)
        (work / "tools.jinja").write_text(TOOL_TEMPLATE)
        greeting_model(bundled, work / "greeting", TOOL_TEMPLATE)
        endless_model(bundled, work / "trained")
        other_weights(endless_model(bundled, work / "other"))
        without_end(endless_model(bundled, work / "unending"))
        for who, checkout, file in files(o):
            if not re.search(o.only, file):
                continue
            if file not in kept and o.no_run:
                missing.append(f"{who} {file.rpartition('/')[2]}")
                continue
            if file not in kept:
                kept[file] = run(o, work, who, checkout, file)
                if o.results:
                    o.results.write_text(json.dumps(kept, indent=1))
            rows[who].append((file.partition("/")[2], kept[file]))
            print(file, dict(collections.Counter(kind_of(r)[0] for r in kept[file])), flush=True)
    # By its title: the page is committed after it, and a commit that moves to another branch keeps that.
    commit = subprocess.run(["git", "-C", o.source, "log", "-1", "--format=%s"], capture_output=True, text=True).stdout.strip()
    text = ["# The servers' tests of SGLang and vLLM against `sluice serve`\n",
            "How to repeat it, and what the columns are: the head of tests/server/peer_suites.py.\n",
            f"Sluice: commit \"{commit or 'unknown'}\"." + "".join(
                f" {who}: {version(c)}." for who, c in (("SGLang", o.sglang), ("vLLM", o.vllm)) if c)]
    text += [table(who, some) for who, some in rows.items()]
    if missing:
        text.append("\nNot run yet: " + ", ".join(missing) + ".")
    text = "\n".join(text) + "\n"
    if o.report:
        o.report.write_text(text)
    else:
        print(text)
    return any(kind_of(r)[0] == "failed" for some in rows.values() for _, results in some for r in results)


if __name__ == "__main__":
    sys.exit(main())
