// SPDX-License-Identifier: Apache-2.0
// The kernel that rounds GEMM1's float32 rows for GEMM2 against the host's quantisers, bit for bit: every format, tiles
// of any size, rows that one warp holds, that four do, and longer ones.
#include "base/math.h"
#include "format/quantize_rows.h"
#include "kernels/sm90/quantize/rows.h"
#include "tests/kernels_sm90/device_problem.h"
#include "tests/kernels_sm90/values.h"

namespace sluice::test {
namespace {

using format::InputFormat;
using sm90::Round;

struct Case {
  InputFormat format;
  Round round;
  bool e4m3;  // rows hold codes
  bool raw;   // values were rounded to groups of 128 columns before
};
constexpr Case kCases[] = {{InputFormat::fp8_token, Round::fp8_token, true, false},
                           {InputFormat::fp8_token, Round::fp8_token, false, false},
                           {InputFormat::nvfp4_token, Round::nvfp4_token, false, false},
                           {InputFormat::fp8_group, Round::fp8_group, true, false},
                           {InputFormat::fp8_group, Round::fp8_group, false, false},
                           {InputFormat::fp8_group, Round::fp8_group, true, true},
                           {InputFormat::fp8_group, Round::fp8_group, false, true}};

// Tiles of up to max_n rows, one after the other.
std::vector<sm90::RowTile> random_tiles(std::mt19937& rng, int count, int max_n, int step) {
  std::vector<sm90::RowTile> tiles;
  int base = 0;
  for (int i = 0; i < count; ++i) {
    const int rows = i == 0 ? max_n : 1 + static_cast<int>(rng() % static_cast<unsigned>(max_n));
    tiles.push_back({i, base, rows, round_up(rows, step)});
    base += tiles.back().padded;
  }
  return tiles;
}

// What a row reads as, block scales included, and its scales.
struct ExpectedRow {
  format::QuantRows q;
  std::vector<float> values;  // of codes times block scales, as bf16 rows hold them
};
ExpectedRow expected_row(const Case& c, std::vector<float> x) {
  const auto columns = static_cast<int64_t>(x.size());
  if (c.raw) format::round_row(InputFormat::fp8_group, x.data(), columns);
  ExpectedRow e{format::quantize_rows(c.format, x.data(), 1, columns), {}};
  for (int64_t k = 0; k < columns; ++k) {
    const auto i = static_cast<size_t>(k);
    if (c.format == InputFormat::nvfp4_token)
      e.values.push_back(format::e2m1_to_float(e.q.codes[i / 2] >> (k % 2 * 4) & 15) *
                         format::e4m3_to_float(e.q.scales[i / 16]));
    else
      e.values.push_back(format::e4m3_to_float(e.q.codes[i]));
  }
  return e;
}

bool same(float a, float b) { return a == b || (std::isnan(a) && std::isnan(b)); }

// max_rows: what the launch is told; the kernel's form depends on it.
void check_case(const Case& c, int columns, int max_n, int64_t max_rows, bool special, std::mt19937& rng) {
  SCOPED_TRACE(fmt::format("{} {}{} {} columns, tiles of {}, {} rows{}", name_of(format::kInputFormats, c.format),
                           c.e4m3 ? "codes" : "bf16", c.raw ? ", rounded before" : "", columns, max_n, max_rows,
                           special ? ", with NaN" : ""));
  const int step = max_n <= 64 ? 8 : 16;
  const std::vector<sm90::RowTile> tiles = random_tiles(rng, 5, max_n, step);
  const int total = tiles.back().row_base + tiles.back().padded;
  const std::vector<float> x = values(rng, total, columns, false, special);
  const int per_block = c.e4m3 ? 128 : 64, k_blocks = ceil_div(columns, per_block);
  const int runs = c.format == InputFormat::fp8_group ? ceil_div(columns, 128) : 0;

  std::vector<sm90::RowTile> table = tiles;  // and one that is not used
  table.push_back({99, 1 << 29, 1 << 29, 1 << 29});
  const sm90::Header header{static_cast<int>(tiles.size()), total, {0, 0}};
  const sm90::InputScale ones;
  const sm90::DeviceBuffer in = upload(x.data(), static_cast<int64_t>(x.size()) * 4),
                           on_tiles = upload(table.data(), static_cast<int64_t>(table.size() * sizeof(table[0]))),
                           on_header = upload(&header, sizeof(header)), on_ones = upload(&ones, sizeof(ones));
  const sm90::DeviceBuffer out = poisoned(int64_t{total} * k_blocks * 128), row_scale = poisoned(int64_t{total} * 4),
                           block_scale = poisoned(int64_t{total} * std::max(runs, 1) * 4);
  const bool by_row = runs == 0;
  sm90::RowsArgs a{};
  a.source.float_rows = in.as<float>();
  a.source.columns = columns;
  a.source.raw = c.raw;
  a.source.act = activation::Activation::identity;
  a.out.round = c.round;
  a.out.e4m3 = c.e4m3;
  a.out.static_scale = on_ones.as<sm90::InputScale>();
  a.out.data = out.as<uint8_t>();
  a.out.k_blocks = k_blocks;
  a.out.scale_runs = runs;
  a.out.row_scale = by_row ? row_scale.as<float>() : nullptr;
  a.out.block_scale = by_row ? nullptr : block_scale.as<float>();
  a.gather.tiles = on_tiles.as<sm90::RowTile>();
  a.gather.header = on_header.as<sm90::Header>();
  sm90::launch_requantize(a, static_cast<int64_t>(table.size()), max_n, max_rows, nullptr, true);

  const auto bytes = download<uint8_t>(out);
  const auto row_scales = download<float>(row_scale), block_scales = download<float>(block_scale);
  for (const sm90::RowTile& tile : tiles)
    for (int n = 0; n < tile.padded; ++n) {
      const int64_t row = tile.row_base + n;
      const auto at = [&](int column) {
        const int in_block = column % per_block * (c.e4m3 ? 1 : 2);
        return static_cast<size_t>((int64_t{tile.row_base} * k_blocks + int64_t{column / per_block} * tile.padded) *
                                   128) +
               sm90::swizzled(static_cast<uint32_t>(n), static_cast<uint32_t>(in_block / 16)) +
               static_cast<size_t>(in_block % 16);
      };
      const auto scale_at = [&](int group) {
        return static_cast<size_t>(int64_t{tile.row_base} * runs + int64_t{group} * tile.padded + n);
      };
      if (n >= tile.count) {  // only scales of groups are cleared there
        for (int k = 0; k < k_blocks * per_block; ++k) ASSERT_EQ(bytes[at(k)], 0xff) << "padding row " << row;
        for (int g = 0; g < runs; ++g) ASSERT_EQ(block_scales[scale_at(g)], 0.0f) << "padding row " << row;
        ASSERT_TRUE(std::isnan(row_scales[static_cast<size_t>(row)]));
        continue;
      }
      const auto from = x.begin() + row * columns;
      const ExpectedRow e = expected_row(c, {from, from + columns});
      for (int k = 0; k < k_blocks * per_block; ++k) {
        uint16_t word = 0;
        std::memcpy(&word, bytes.data() + at(k), c.e4m3 ? 1 : 2);
        const float got = c.e4m3 ? format::e4m3_to_float(static_cast<uint8_t>(word)) : bf16_to_float(word);
        // What follows the columns meets weights that are zero. Where its scale is NaN it is NaN as well.
        const float scale = by_row           ? e.q.row_scales[0]
                            : k / 128 < runs ? e.q.group_scales[static_cast<size_t>(k / 128)]
                                             : 0.0f;
        const float wanted = k < columns ? e.values[static_cast<size_t>(k)] : std::isnan(scale) ? NAN : 0.0f;
        ASSERT_TRUE(same(got, wanted)) << "row " << row << " column " << k << ": " << got << ", on the host " << wanted;
      }
      for (int g = 0; g < runs; ++g)
        ASSERT_TRUE(same(block_scales[scale_at(g)], e.q.group_scales[static_cast<size_t>(g)]))
            << "row " << row << " group " << g;
      ASSERT_TRUE(!by_row || same(row_scales[static_cast<size_t>(row)], e.q.row_scales[0])) << "row " << row;
    }
}

TEST(Requantize, EqualsTheHostBitForBit) {
  SLUICE_SKIP_WITHOUT_DEVICE();
  std::mt19937 rng = test::rng();
  int cases = 0;
  for (const Case& c : kCases)
    for (const int columns : {8, 100, 128, 768, 1000, 1024, 1031, 1856, 4096, 4104, 9000})
      for (const auto& [max_n, special] : {std::pair{8, false}, {16, true}, {128, false}}) {
        if (columns > 4000 && max_n > 16) continue;
        for (const int64_t max_rows : {5 * max_n, 100000}) {
          check_case(c, columns, max_n, max_rows, special, rng);
          ++cases;
          if (HasFatalFailure()) return;
        }
      }
  std::printf("rows between GEMMs: %d cases equal the host bit for bit\n", cases);
}

}  // namespace
}  // namespace sluice::test
