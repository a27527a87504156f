/* SPDX-License-Identifier: Apache-2.0
 * A whole model from C: example_generate FOLDER PROMPT prints the continuation as it comes. */
#include <stdio.h>
#include <string.h>

#include "sluice/c.h"

static int fail(void) {
  fprintf(stderr, "%s\n", sluice_last_error());
  return 1;
}

static int print_token(void* user, int32_t id, const char* text) {
  (void)user;
  (void)id;
  fputs(text, stdout);
  fflush(stdout);
  return 0; /* anything else stops */
}

int main(int argc, char** argv) {
  if (argc != 3) {
    fprintf(stderr, "usage: %s FOLDER PROMPT\n", argv[0]);
    return 2;
  }
  sluice_context* context = NULL;
  sluice_model* model = NULL;
  if (sluice_context_create(0, &context) != SLUICE_OK) return fail();
  if (sluice_model_load(context, argv[1], NULL, &model) != SLUICE_OK) return fail();

  int32_t ids[512];
  size_t count = 0;
  if (sluice_model_encode(model, argv[2], strlen(argv[2]), ids, 512, &count) != SLUICE_OK) return fail();

  sluice_generate_options options = SLUICE_INIT(sluice_generate_options);
  options.max_new_tokens = 64;
  options.temperature = 0.7;
  options.top_k = 40;
  options.seed = 1;
  sluice_generated result = SLUICE_INIT(sluice_generated);
  printf("%s", argv[2]);
  if (sluice_model_generate(model, ids, count, &options, print_token, NULL, &result) != SLUICE_OK) return fail();
  printf("\n%lld tokens, %.1f tokens/s\n", (long long)result.tokens, (double)result.tokens / result.decode_seconds);

  sluice_model_destroy(model);
  sluice_context_destroy(context);
  return 0;
}
