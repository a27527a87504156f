# SPDX-License-Identifier: Apache-2.0
"""Other weights for `sluice serve`, as RL trainers bring them: tensors, checkpoints, versions, checksums, values by name.

usage: weight_update_test.py PROGRAM SOURCE_FOLDER [unittest arguments]
"""
import json
import math
import os
import pathlib
import random
import shutil
import struct
import tempfile

from checkpoint_bytes import checksums, halved, read_checkpoint, SharedTensors
from control_case import Control, LOGPROBS, WithWeightUpdates
from serve_case import CHAT, main, MODEL, PROGRAM
from serve_driver import Server


class Versions(Control):
    def test_every_answer_names_the_weights(self):
        self.assertEqual(self.info("weight_version"), "0")
        named = self.ok("/update_weight_version", {"new_version": "step-3"})
        self.assertEqual((named["success"], named["new_version"]), (True, "step-3"))
        self.assertEqual(self.info("weight_version"), "step-3")
        self.assertEqual(self.ok("/generate", LOGPROBS)["meta_info"]["weight_version"], "step-3")
        for path, body in (("/v1/completions", {"prompt": "a"}), ("/v1/chat/completions", {"messages": CHAT})):
            self.assertEqual(self.ok(path, {**body, "max_tokens": 2})["metadata"], {"weight_version": "step-3"})
            events = self.server.stream(path, {**body, "max_tokens": 2, "n": 2, "ignore_eos": True})[1]
            for event in events:  # that of the weights that made the choice's last token
                last = event["choices"][0]["finish_reason"] is not None
                self.assertEqual(event.get("metadata"), {"weight_version": "step-3"} if last else None, event)
            self.assertEqual(sum("metadata" in event for event in events), 2)
        status, events = self.server.stream("/generate", LOGPROBS)
        self.assertEqual({e["meta_info"]["weight_version"] for e in events}, {"step-3"})
        message, response = {"messages": CHAT, "max_tokens": 2}, {"input": "a", "max_output_tokens": 2, "temperature": 0, "metadata": {"a": "b"}}
        self.assertEqual(self.ok("/v1/messages", message)["weight_version"], "step-3")
        got = self.ok("/v1/responses", response)
        self.assertEqual((got["weight_version"], got["metadata"]), ("step-3", {"a": "b"}))
        for path, body, bearer in (("/v1/messages", message, lambda e: e),
                                   ("/v1/responses", response, lambda e: e.get("response", {}))):
            text = self.server.request("POST", path, {**body, "stream": True})[2]
            events = [json.loads(line.removeprefix("data: ")) for line in text.splitlines() if line.startswith("data: ")]
            named = {e["type"] for e in events if bearer(e).get("weight_version") == "step-3"}
            self.assertEqual(named, {"message_delta"} if path == "/v1/messages" else {"response.incomplete"})
        done = self.ok("/update_weights_from_disk", {"model_path": str(MODEL)})
        self.assertEqual(done["weight_version"], "1")
        self.assertEqual(self.info("weight_version"), "1")
        for body in ({}, {"new_version": ""}, {"new_version": 7}, {"new_version": "x" * 257}, {"new_version": "a", "x": 1}):
            self.refused("/update_weight_version", body)
        self.assertEqual(self.info("weight_version"), "1")


class Weights(WithWeightUpdates):
    def test_checksums_are_hashlibs(self):
        each, all_of_them = checksums(self.tensors)
        got = self.checker()
        self.assertTrue(got["success"])
        self.assertEqual(got["ranks"][0]["checksums"], each)
        self.assertEqual(got["per_engine_checksum"], all_of_them)
        skipped = self.checker(skip_tensor_list=[self.norm])
        self.assertEqual(set(each) - set(skipped["ranks"][0]["checksums"]), {self.norm})
        self.assertNotEqual(skipped["per_engine_checksum"], all_of_them)
        self.assertEqual(json.loads(self.server.get("/weights_checker")[2])["per_engine_checksum"], all_of_them)
        for body in ({"action": "snapshot"}, {"action": 7}, {"selector": "draft"}, {"skip_tensor_list": 7}, {"x": 1}):
            self.refused("/weights_checker", body, next(iter(body)))

    def test_values_by_name(self):
        for name, (dtype, shape, data) in sorted(self.tensors.items())[:40]:
            rows = self.ok("/get_weights_by_name", {"name": name, "truncate_size": 3})
            width = math.prod(shape[1:])
            count = min(3, shape[0]) * width
            if dtype == "F32":
                expected = list(struct.unpack(f"<{count}f", data[:count * 4]))
            else:
                expected = [struct.unpack("<f", b"\0\0" + data[2 * i:2 * i + 2])[0] for i in range(count)]
            flat = rows
            for _ in shape[1:]:
                flat = [v for row in flat for v in row]
            self.assertEqual(len(rows), min(3, shape[0]))
            self.assertEqual([struct.pack("<f", v) for v in flat], [struct.pack("<f", v) for v in expected], name)
        for body in ({}, {"name": 7}, {"name": "model.nothing"}, {"name": self.norm, "truncate_size": 0},
                     {"name": self.norm, "truncate_size": 10**9}, {"name": self.norm, "x": 1}):
            self.refused("/get_weights_by_name", body)

    def test_tensors_come_through_shared_memory(self):
        fresh = self.answer()
        changed = {name: halved(t) for name, t in self.tensors.items() if "in_proj" in name or name == self.norm}
        with SharedTensors(changed) as spec:
            done = self.ok("/update_weights_from_tensor", {**spec, "weight_version": "half", "flush_cache": False,
                                                           "load_format": "flattened_bucket"})
        self.assertEqual((done["success"], done["weight_version"]), (True, "half"))
        each, all_of_them = checksums({**self.tensors, **changed})
        got = self.checker()
        self.assertEqual(got["ranks"][0]["checksums"], each)
        self.assertEqual((got["per_engine_checksum"], got["weight_version"]), (all_of_them, "half"))
        other = self.answer()
        self.assertNotEqual(other, fresh)
        # The same as of a checkpoint with these tensors, and back.
        with SharedTensors({name: self.tensors[name] for name in changed}) as spec:
            self.ok("/update_weights_from_tensor", spec)
        self.assertEqual(self.answer(), fresh)
        self.assertEqual(self.checker()["ranks"][0]["checksums"], checksums(self.tensors)[0])
        with SharedTensors(changed) as spec:
            self.ok("/update_weights_from_tensor", spec)
        self.assertEqual(self.answer(), other)

    def test_tensors_come_from_a_file(self):
        fresh = self.answer()
        dtype, shape, data = halved(self.tensors[self.norm])
        (self.folder / "bucket").write_bytes(b"before" + data)
        spec = [{"name": self.norm, "dtype": {"BF16": "torch.bfloat16", "F32": "float32"}[dtype], "shape": shape, "offset": 6}]
        self.ok("/update_weights_from_tensor", {"tensors": spec, "file": str(self.folder / "bucket")})
        self.assertNotEqual(self.answer(), fresh)
        os.symlink("/etc/passwd", self.folder / "link")
        for path in ("/etc/passwd", str(self.folder / "link"), str(self.folder / ".." / ".." / "etc" / "passwd"),
                     str(self.folder), str(self.folder / "nothing"), "", "bucket", str(self.folder / "bucket") + "\0"):
            self.failed("/update_weights_from_tensor", {"tensors": spec, "file": path}, param="file")

    def test_all_or_nothing(self):
        """Nothing of a refused update is in place, wherever in it the mistake is."""
        fresh, before = self.answer(), self.checker()
        good = {name: halved(t) for name, t in sorted(self.tensors.items())[:6]}
        with SharedTensors(good) as spec:
            tensors = spec["tensors"]
            bad = lambda **more: {**spec, "tensors": [*tensors[:-1], {**tensors[-1], **more}]}
            last = "tensors[5]."
            for body, param in ((bad(name="model.nothing"), last + "name"), (bad(name=tensors[0]["name"]), last + "name"),
                                (bad(name=7), last + "name"), (bad(dtype="F16"), last + "dtype"),
                                (bad(dtype="pickle"), last + "dtype"), (bad(dtype=None), last + "dtype"),
                                (bad(shape=[2**62, 4]), last + "shape"), (bad(shape=[-1]), last + "shape"),
                                (bad(shape="x"), last + "shape"), (bad(shape=None), last + "shape"),
                                (bad(offset=-1), last + "offset"), (bad(offset=2**63 - 1), last + "offset"),
                                (bad(offset=tensors[-1]["offset"] + 1), last + "offset"), (bad(offset=None), last + "offset"),
                                (bad(extra=1), last + "extra"), ({**spec, "tensors": []}, "tensors"),
                                ({**spec, "tensors": 7}, "tensors"), ({**spec, "tensors": [7]}, "tensors[0]"),
                                ({**spec, "shared_memory": None}, "shared_memory"),
                                ({**spec, "file": str(self.folder / "x")}, "shared_memory"),
                                ({**spec, "shared_memory": "sluice_nothing"}, "shared_memory"),
                                ({**spec, "shared_memory": "../../etc/passwd"}, "shared_memory"),
                                ({**spec, "shared_memory": "/a/b"}, "shared_memory"),
                                ({**spec, "shared_memory": ""}, "shared_memory"), ({**spec, "shared_memory": "."}, "shared_memory"),
                                ({**spec, "shared_memory": "x" * 300}, "shared_memory"),
                                ({**spec, "serialized_named_tensors": ["gASV"]}, "serialized_named_tensors"),
                                ({**spec, "cuda_ipc_handle": "AAAA"}, "cuda_ipc_handle"),
                                ({**spec, "load_format": "my.loader"}, "load_format"), ({**spec, "selector": "draft"}, "selector"),
                                ({**spec, "weight_version": 7}, "weight_version"), ({**spec, "unknown": 1}, "unknown")):
                self.failed("/update_weights_from_tensor", body, param=param)
        self.assertEqual(self.answer(), fresh)
        self.assertEqual(self.checker(), before)

    def test_an_update_of_several_calls_is_one(self):
        fresh = self.answer()
        changed = {name: halved(t) for name, t in sorted(self.tensors.items())}
        names = list(changed)
        self.ok("/begin_weight_update", "")
        for part in (names[:len(names) // 2], names[len(names) // 2:]):
            self.assertEqual(self.answer(), fresh)  # half of them are there, and none is in place
            with SharedTensors({name: changed[name] for name in part}) as spec:
                self.ok("/update_weights_from_tensor", spec)
        self.assertEqual(self.checker()["ranks"][0]["checksums"], checksums(self.tensors)[0])
        done = self.ok("/end_weight_update", {"weight_version": "all"})
        self.assertEqual(done["weight_version"], "all")
        self.assertEqual(self.checker()["ranks"][0]["checksums"], checksums(changed)[0])
        self.assertNotEqual(self.answer(), fresh)
        self.failed("/end_weight_update", {}, needle="no update has begun")
        self.failed("/begin_weight_update", {"x": 1}, param="x")

    def test_an_update_ends_where_its_tensors_are_dropped(self):
        before = self.checker()["ranks"]
        changed = {self.norm: halved(self.tensors[self.norm])}
        for path, body, needle in (("/release_memory_occupation", {"tags": ["weights"]}, "dropped when the weights were released"),
                                   ("/update_weights_from_disk", {"model_path": str(MODEL)}, "dropped when a folder's weights")):
            self.ok("/begin_weight_update", "")
            self.failed("/begin_weight_update", "", needle="an update has begun already")
            with SharedTensors(changed) as spec:
                self.ok("/update_weights_from_tensor", spec)
            self.ok(path, body)
            self.ok("/resume_memory_occupation", {})
            self.failed("/end_weight_update", {}, needle=needle)
            self.assertEqual(self.checker()["ranks"], before)
        self.ok("/begin_weight_update", "")
        self.failed("/end_weight_update", {}, needle="no tensor that the model uses")

    def test_files_that_changed_are_not_the_weights(self):
        copy = self.folder / "copy"
        shutil.copytree(MODEL, copy)
        self.ok("/update_weights_from_disk", {"model_path": str(copy)})
        self.checker()
        os.utime(next(copy.glob("model*.safetensors")), (1, 1))
        self.refused("/weights_checker", {}, needle="written to")
        self.refused("/get_weights_by_name", {"name": self.norm}, needle="written to")
        with SharedTensors({self.norm: self.tensors[self.norm]}) as spec:
            self.failed("/update_weights_from_tensor", spec, needle="written to")
        self.assertTrue(self.answer())

    def test_what_needs_torch_says_so(self):
        for path in ("/init_weights_update_group", "/destroy_weights_update_group", "/update_weights_from_distributed",
                     "/update_weights_from_ipc"):
            self.failed(path, {}, status=501, needle="/update_weights_from_tensor")

    def test_as_slime_does(self):
        """pause, flush until 200, tensors, version, continue; every step."""
        for step in range(3):
            self.ok("/pause_generation", {})
            self.assertEqual(self.server.get("/flush_cache")[0], 200)
            new = {name: halved(t) if step % 2 == 0 else t for name, t in self.tensors.items()}
            names = list(new)
            for at in range(0, len(names), 20):
                with SharedTensors({name: new[name] for name in names[at:at + 20]}) as spec:
                    self.ok("/update_weights_from_tensor", {**spec, "load_format": "flattened_bucket", "flush_cache": False,
                                                            "weight_version": str(step)})
            self.ok("/continue_generation", {})
            self.assertEqual(self.checker()["ranks"][0]["checksums"], checksums(new)[0])
            self.assertEqual(self.ok("/generate", LOGPROBS)["meta_info"]["weight_version"], str(step))


class NotAllowed(Control):
    def test_updates_need_the_option(self):
        with SharedTensors({"a": ("F32", [1], b"\0" * 4)}) as spec:
            for path, body in (("/update_weights_from_tensor", spec), ("/begin_weight_update", ""), ("/end_weight_update", "")):
                self.failed(path, body, status=403, needle="weight updates allowed")


class Quantized(Control):
    words = ("--allow-weight-update", "--quantization", "mxfp4")

    def test_bf16_is_quantised_as_by_the_loader(self):
        tensors = read_checkpoint(MODEL)
        fresh = self.answer()
        changed = {name: halved(t) for name, t in tensors.items()}
        for new in (changed, tensors):
            with SharedTensors(new) as spec:
                self.ok("/update_weights_from_tensor", spec)
        self.assertEqual(self.answer(), fresh)


class Dummies(Control):
    """A server that has the configuration alone, and gets its weights from a trainer."""
    words = ("--allow-weight-update", "--load-format", "dummy", "--weights-folder", str(MODEL))

    @classmethod
    def setUpClass(cls):
        folder = pathlib.Path(tempfile.mkdtemp(prefix="sluice-dummy-"))
        cls.addClassCleanup(shutil.rmtree, folder)
        for file in MODEL.iterdir():
            if "safetensors" not in file.name:
                shutil.copy(file, folder)
        cls.model = folder
        cls.tensors = read_checkpoint(MODEL)
        loaded = Server(PROGRAM, MODEL, "--dtype", "float32")
        try:
            status, got = loaded.post("/generate", LOGPROBS)
        finally:
            loaded.close()
        assert status == 200, got
        cls.expected = got["output_ids"]
        cls.logprobs = got["meta_info"]["output_token_logprobs"]

    def setUp(self):
        self.names = sorted(self.tensors)
        self.server = Server(PROGRAM, self.model, "--dtype", "float32", *self.words)
        self.addCleanup(self.server.close)
        seed = int(os.environ.get("SLUICE_TEST_SEED") or random.randrange(1 << 32))
        print(f"SLUICE_TEST_SEED={seed}", flush=True)
        random.Random(seed).shuffle(self.names)

    def send(self, names, **more):
        with SharedTensors({name: self.tensors[name] for name in names}) as spec:
            return self.ok("/update_weights_from_tensor", {**spec, **more})["message"]

    def has_the_folders_weights(self):
        ids, _, logprobs = self.answer()
        self.assertEqual((ids, logprobs), (self.expected, self.logprobs))
        self.assertEqual(self.ok("/weights_checker", {})["ranks"][0]["checksums"], checksums(self.tensors)[0])

    def test_buckets_until_all_are_there(self):
        dummies = self.answer()
        self.assertNotEqual(dummies[0], self.expected)
        for at in range(0, len(self.names), 30):
            for path, body in (("/weights_checker", {}), ("/get_weights_by_name", {"name": self.names[0]})):
                self.refused(path, body, needle="the weights are dummies")
            message = self.send(self.names[at:at + 30], weight_version="sent")
            come = min(at + 30, len(self.names))
            if come == len(self.names):
                break
            self.assertIn(f"{come} of the model's {len(self.names)} have come", message)
            self.assertTrue(message.endswith(" is missing"), message)
            self.assertIn(message.split()[-3].strip('"'), self.names[come:])
            self.assertEqual(self.info("weight_version"), "0")
            self.assertEqual(self.answer(), dummies)
        self.assertNotIn("dummy", message)
        self.assertEqual(self.info("weight_version"), "sent")
        self.has_the_folders_weights()
        # As verl: released, and sent anew. Requests wait for all of them.
        self.ok("/release_memory_occupation", {})
        self.ok("/resume_memory_occupation", {})
        self.send(self.names[1:])
        self.refused("/generate", LOGPROBS, status=503, needle=self.names[0])
        self.send(self.names[:1])
        self.has_the_folders_weights()

    def test_all_at_once(self):
        self.ok("/begin_weight_update", "")
        self.send(self.names[1:])
        failed = self.failed("/end_weight_update", {}, needle=self.names[0])
        self.assertIn(f"{len(self.names) - 1} of {len(self.names)} tensors have come", failed["message"])
        self.ok("/begin_weight_update", "")
        self.assertIn("/end_weight_update puts them in place", self.send(self.names[:1]))
        self.assertNotEqual(self.answer()[0], self.expected)
        self.ok("/end_weight_update", {})
        self.has_the_folders_weights()

    def test_names_that_the_model_does_not_use(self):
        some = self.tensors[self.names[0]]
        with SharedTensors({**self.tensors, "model.rotary_emb.inv_freq": some}) as spec:
            message = self.ok("/update_weights_from_tensor", spec)["message"]
        self.assertTrue(message.endswith("; the running weights do not have 1 of them"), message)
        self.has_the_folders_weights()
        with SharedTensors({"xyz": some}) as spec:
            self.failed("/update_weights_from_tensor", spec, param="tensors", needle='has no tensor "xyz"')
        self.has_the_folders_weights()

    def test_shapes_and_files(self):
        name = next(n for n in self.names if n.endswith("norm_f.weight"))
        with SharedTensors({name: self.tensors[name]}) as spec:
            for shape in ([255], [2**62], [2**40]):
                bad = {**spec, "tensors": [{**spec["tensors"][0], "shape": shape}]}
                self.failed("/update_weights_from_tensor", bad, param="tensors", needle="accepted: [256]")
            unknown = {**spec, "tensors": [{**spec["tensors"][0], "name": "x", "shape": [2**62], "dtype": "F64"}]}
            self.failed("/update_weights_from_tensor", unknown, param="tensors", needle='"x"')
        dummies = self.answer()
        self.ok("/release_memory_occupation", {})
        self.ok("/resume_memory_occupation", {})
        self.assertEqual(self.answer(), dummies)
        self.ok("/update_weights_from_disk", {"model_path": str(MODEL)})
        self.has_the_folders_weights()
        self.ok("/release_memory_occupation", {})
        self.ok("/resume_memory_occupation", {})
        self.has_the_folders_weights()
        with SharedTensors({"x": self.tensors[name]}) as spec:
            self.failed("/update_weights_from_tensor", spec, param="tensors[0].name")


if __name__ == "__main__":
    main()
