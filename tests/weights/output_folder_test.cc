// SPDX-License-Identifier: Apache-2.0
// The folder that save_quantized() writes: whether it can, said before the work; where links lead; whole or not there.
#include "live_context.h"
#include "tests/io/child.h"
#include "tests/io/expect_error.h"
#include "weights/save.h"
#include "written_checkpoint.h"

namespace sluice::weights {
namespace {

struct OutputFolderTest : testing::Test, Live {
  Random random;
  io::TempDir out;
  std::filesystem::path folder = out.path() / "quantised";
  Written in;

  OutputFolderTest() {
    for (const char* layer : {"0", "1"})
      put_matrix(in, fmt::format("model.layers.{}.self_attn.q_proj", layer),
                 random_quant(random, format::Format::bf16, 1, 32, 64));
  }
};

TEST_F(OutputFolderTest, OutputFoldersAreLookedAtFirst) {
  check_output_folder(folder);
  check_output_folder(folder / "");
  check_output_folder(out.path());
  io::expect_error(ErrorCode::not_found, {"no/deep", "cannot be created", "no is no folder"},
                   [&] { check_output_folder(out.path() / "no" / "deep"); });
  out.put("file", "x");
  io::expect_error(ErrorCode::not_found, {"file/deep", "cannot be created"},
                   [&] { check_output_folder(out.path() / "file" / "deep"); });
  io::expect_error(ErrorCode::invalid_argument, {"exists already"}, [&] { check_output_folder(out.path()); });
  io::expect_error(ErrorCode::invalid_argument, {"output folder \"\" has an empty name", "accepted: a new"},
                   [] { check_output_folder(""); });
  std::filesystem::create_symlink("loop", out / "loop");
  io::expect_error(ErrorCode::invalid_argument, {"loop exists already"}, [&] { check_output_folder(out / "loop"); });
  std::filesystem::create_symlink("file", out / "to_file");
  io::expect_error(ErrorCode::invalid_argument, {"exists already"}, [&] { check_output_folder(out / "to_file"); });
  // Everything that names the current folder, though it is empty.
  std::filesystem::create_directory(folder);
  const auto before = std::filesystem::current_path();
  std::filesystem::current_path(folder);
  for (const auto& name : {std::filesystem::path("."), std::filesystem::path("./"), folder, folder / "../quantised/."})
    io::expect_error(ErrorCode::invalid_argument, {"is the current folder"}, [&] { check_output_folder(name); });
  check_output_folder("new");
  check_output_folder("./new/.");
  std::filesystem::current_path(before);
  check_output_folder(folder);
}

TEST_F(OutputFolderTest, MountPointsAreRefused) {
  std::filesystem::create_directory(folder);
  const int result = io::in_child_with_mount(folder, [&] {
    return error_of([&] { check_output_folder(folder); }).find("quantised is a mount point") == std::string::npos;
  });
  if (result == io::kNoMount) GTEST_SKIP() << "nothing may be mounted here";
  EXPECT_EQ(result, 0);
}

TEST_F(OutputFolderTest, LinksLeadToTheFolder) {
  const io::Checkpoint source = in.open();
  const SaveOptions options = save_options("mxfp8", "", "", false, false);
  std::filesystem::create_directories(out.path() / "far" / "deep");
  std::filesystem::create_directory(out.path() / "empty");
  std::filesystem::create_directory_symlink("empty", out / "to_empty");
  std::filesystem::create_directory_symlink("far/new", out / "to_new");
  std::filesystem::create_directory_symlink("far/deep", out / "to_deep");
  // What is asked for, and what is written. ".." after a link is the parent of the link's target.
  const std::pair<const char*, const char*> folders[] = {{"to_empty/", "empty"},
                                                         {"to_new", "far/new"},
                                                         {"to_deep/../beside", "far/beside"},
                                                         {"to_deep/below", "far/deep/below"}};
  for (const auto& [asked, written] : folders) {
    save_quantized(ctx, source, out / asked, options);
    EXPECT_TRUE(std::filesystem::is_regular_file(out.path() / written / "model.safetensors")) << asked;
  }
  for (const char* link : {"to_empty", "to_new", "to_deep"}) EXPECT_TRUE(std::filesystem::is_symlink(out / link));
  EXPECT_FALSE(std::filesystem::exists(out / "beside"));
  EXPECT_EQ(out.list().size(), 5u) << "three links, empty, far";
}

TEST_F(OutputFolderTest, NothingIsLeftOfAnUnfinishedFolder) {
  const io::Checkpoint source = in.open();
  ctx.progress = [](const Progress&) { throw std::runtime_error("interrupted"); };
  EXPECT_THROW(save_quantized(ctx, source, folder, save_options("fp8", "", "", false, false)), std::runtime_error);
  EXPECT_TRUE(out.list().empty());
  ctx.progress = [](const Progress&) {};
  in.tensors["model.layers.1.self_attn.q_proj.weight"] = Tensor(DType::i32, {32, 64}).zero();
  error_of([&] { save_quantized(ctx, in.open(), folder, save_options("fp8", "", "", false, false)); });
  EXPECT_TRUE(out.list().empty());
}

}  // namespace
}  // namespace sluice::weights
