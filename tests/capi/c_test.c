/* SPDX-License-Identifier: Apache-2.0
 * The header is C, and a layer whose result is known exactly: one expert, up = 1, down = 2, no activation. */
#include <stdio.h>
#include <string.h>

#include "sluice/c.h"

#define REQUIRE(condition)                                                                   \
  if (!(condition)) {                                                                        \
    fprintf(stderr, "%s:%d: %s: %s\n", __FILE__, __LINE__, #condition, sluice_last_error()); \
    return 1;                                                                                \
  }

enum { kSize = 32, kTokens = 3 };
static const uint16_t kOne = 0x3f80, kTwo = 0x4000; /* bfloat16 */

int main(void) {
  uint16_t up[kSize * kSize], down[kSize * kSize];
  memset(up, 0, sizeof up);
  memset(down, 0, sizeof down);
  for (int i = 0; i < kSize; ++i) {
    up[i * kSize + i] = kOne;
    down[i * kSize + i] = kTwo;
  }
  sluice_moe_weights weights = SLUICE_INIT(sluice_moe_weights);
  weights.up.codes = up;
  weights.down.codes = down;

  sluice_context* context = NULL;
  REQUIRE(sluice_context_create(2, &context) == SLUICE_OK);
  sluice_moe* moe = NULL;
  const char* spec = "experts=1 top_k=1 hidden=32 inter=32 weights=bf16 dtype=float32 act=identity";
  REQUIRE(sluice_moe_create(context, spec, "auto", &weights, &moe) == SLUICE_OK);
  sluice_context_destroy(context); /* the layer keeps what it needs */

  float hidden[kTokens * kSize], logits[kTokens] = {1.0f, -2.0f, 0.5f}, output[kTokens * kSize];
  for (int i = 0; i < kTokens * kSize; ++i) hidden[i] = (float)(i - 40) * 0.25f;
  memset(output, 0xff, sizeof output); /* NaN */
  int32_t experts[kTokens] = {-7, -7, -7};
  sluice_moe_args args = SLUICE_INIT(sluice_moe_args);
  args.tokens = kTokens;
  args.hidden = hidden;
  args.logits = logits;
  args.logits_dtype = SLUICE_F32;
  args.output = output;
  args.chosen_ids = experts;
  REQUIRE(sluice_moe_run(moe, &args) == SLUICE_OK);
  for (int i = 0; i < kTokens * kSize; ++i) REQUIRE(output[i] == 2.0f * hidden[i]);
  for (int t = 0; t < kTokens; ++t) REQUIRE(experts[t] == 0);

  args.struct_size = 0;
  REQUIRE(sluice_moe_run(moe, &args) == SLUICE_INVALID_ARGUMENT);
  REQUIRE(strstr(sluice_last_error(), "struct_size") != NULL);
  sluice_moe_destroy(moe);
  sluice_moe_destroy(NULL);
  printf("ok, version %s\n", sluice_version());
  return 0;
}
