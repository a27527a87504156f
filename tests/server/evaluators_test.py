# SPDX-License-Identifier: Apache-2.0
"""Programs that measure models through a server: lm-eval (EleutherAI's harness; log probabilities of given texts, and answers)
and guidellm (speed under load).

usage: evaluators_test.py PROGRAM SOURCE_FOLDER [unittest arguments]   exit code 77: the packages are not installed
"""
import json
import os
import pathlib
import subprocess
import sys
import tempfile

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
from serve_case import CONTINUATION, main, MODEL, PROMPT, SOURCE, WithServer  # noqa: E402

PROGRAMS = SOURCE / "build" / "evaluators" / "bin"  # scripts/setup.sh test
if not all((PROGRAMS / name).exists() for name in ("lm_eval", "guidellm")):
    print("skipped: lm-eval and guidellm are not installed; scripts/setup.sh test installs them where PyPI can be reached")
    sys.exit(77)

TOKENS = 26  # of CONTINUATION
TASKS = {
    "choice": {"output_type": "multiple_choice", "doc_to_choice": "{{[bad, good]}}", "doc_to_target": 1, "target_delimiter": "",
               "metric_list": [{"metric": "acc", "aggregation": "mean", "higher_is_better": True}]},
    "text": {"output_type": "generate_until", "doc_to_target": "{{good}}",
             "generation_kwargs": {"max_gen_toks": TOKENS, "until": ["\n\n"]},
             "metric_list": [{"metric": "exact_match", "aggregation": "mean", "higher_is_better": True}]},
}


class Evaluators(WithServer):
    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="sluice-evaluators-")
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        self.base = f"http://127.0.0.1:{self.server.port}"

    def run_program(self, *words):
        env = {**os.environ, "HF_HUB_OFFLINE": "1", "HF_HOME": str(self.folder / "hf"), "PATH": f"{PROGRAMS}:{os.environ['PATH']}"}
        done = subprocess.run([PROGRAMS / words[0], *words[1:]], cwd=self.folder, env=env, capture_output=True, text=True)
        self.assertEqual(done.returncode, 0, (done.stdout + done.stderr)[-3000:])

    def test_lm_eval(self):
        """A choice between two texts, and a text. What is right is how transformers goes on in float32, by the checkpoint's card."""
        # The same words in another order are not what the model goes on with.
        bad = "".join(reversed([" " + word for word in CONTINUATION.split()]))
        data = self.folder / "data.jsonl"
        data.write_text(json.dumps({"text": PROMPT, "good": CONTINUATION, "bad": bad}) + "\n")
        for name, task in TASKS.items():  # JSON is YAML
            (self.folder / f"{name}.yaml").write_text(json.dumps({
                "task": f"sluice_{name}", "dataset_path": "json", "dataset_kwargs": {"data_files": {"test": str(data)}},
                "test_split": "test", "doc_to_text": "{{text}}", **task}))
        self.run_program("lm_eval", "--model", "local-completions", "--model_args",
                         f"model=tiny,base_url={self.base}/v1/completions,tokenizer={MODEL},num_concurrent=2", "--tasks",
                         ",".join(f"sluice_{name}" for name in TASKS), "--include_path", self.folder, "--output_path", "out", "--log_samples")
        samples = {name: json.loads(next(self.folder.glob(f"out/**/samples_sluice_{name}_*.jsonl")).read_text()) for name in TASKS}
        self.assertEqual(samples["text"]["resps"], [[CONTINUATION]])
        self.assertEqual(samples["choice"]["acc"], 1)
        (of_bad, bad_is_greedy), (of_good, good_is_greedy) = samples["choice"]["filtered_resps"]
        self.assertGreater(float(of_good), float(of_bad))
        self.assertEqual((good_is_greedy, bad_is_greedy), ("True", "False"))

    def test_guidellm(self):
        self.run_program("guidellm", "benchmark", "--target", self.base, "--rate-type", "synchronous", "--max-requests", "10",
                         "--data", "prompt_tokens=64,output_tokens=16", "--processor", MODEL, "--output-path", "report.json")
        [run] = json.loads((self.folder / "report.json").read_text())["benchmarks"]
        self.assertEqual(run["request_totals"], {"successful": 10, "errored": 0, "incomplete": 0, "total": 10})
        tokens = run["metrics"]["output_token_count"]["successful"]
        self.assertEqual((tokens["min"], tokens["max"], tokens["count"]), (16, 16, 10))


if __name__ == "__main__":
    main()
