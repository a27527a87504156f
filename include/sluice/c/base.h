/* SPDX-License-Identifier: Apache-2.0
 * Part of sluice/c.h: statuses, and the context of threads and callbacks. */
#ifndef SLUICE_C_BASE_H
#define SLUICE_C_BASE_H

#include <stddef.h>
#include <stdint.h>

#define SLUICE_API __attribute__((visibility("default")))

/* A struct of zeros that knows its size: SLUICE_INIT(sluice_moe_args). */
#ifdef __cplusplus
template <class Struct>
Struct sluice_init() {
  Struct value{};
  value.struct_size = sizeof(Struct);
  return value;
}
#define SLUICE_INIT(type) sluice_init<type>()
#else
#define SLUICE_INIT(type) ((type){.struct_size = sizeof(type)})
#endif

#ifdef __cplusplus
extern "C" {
#endif

typedef enum sluice_status {
  SLUICE_OK = 0,
  SLUICE_INVALID_ARGUMENT = 1, /* an argument is not accepted */
  SLUICE_BAD_FILE = 2,         /* a file is truncated, corrupt or contradicts another */
  SLUICE_NOT_FOUND = 3,        /* a path or a named thing does not exist */
  SLUICE_UNSUPPORTED = 4,      /* well-formed, but no backend or loader takes it */
  SLUICE_OUT_OF_MEMORY = 5,
  SLUICE_IO = 6,       /* the operating system refused a read or a write */
  SLUICE_CUDA = 7,     /* a CUDA call failed */
  SLUICE_INTERNAL = 8, /* a bug of ours */
  SLUICE_BUFFER_TOO_SMALL = 9,
  SLUICE_BUSY = 10 /* an engine's queue is full, or the engine is stopping; the same call may succeed later */
} sluice_status;

/* An integer and not an enum: a caller's value out of range is then an error with a sentence, not undefined. A zeroed
 * struct says float32. */
typedef int32_t sluice_dtype;
enum { SLUICE_F32 = 0, SLUICE_BF16 = 1 };

SLUICE_API const char* sluice_version(void); /* "0.1.0" */
/* The sentence of this thread's last call that did not return SLUICE_OK; valid until its next such call. */
SLUICE_API const char* sluice_last_error(void);

typedef struct sluice_context sluice_context;

/* threads: 1 to 4096, or 0 for every core that the process may use. A context serves one call at a time;
 * others wait. A callback (log, progress, on_token) runs inside such a call: what it calls of the same context gives
 * SLUICE_INVALID_ARGUMENT instead of waiting for itself, save functions that run nothing (encode, decode, get_info,
 * session_create, destroy of other objects). It must not wait for a thread that calls the context either. */
SLUICE_API sluice_status sluice_context_create(int threads, sluice_context** out);
SLUICE_API void sluice_context_destroy(sluice_context* context);

/* level: 0 debug, 1 info, 2 warning. Neither string outlives the call. NULL switches a callback off. */
typedef void (*sluice_log_fn)(void* user, int level, const char* line);
typedef void (*sluice_progress_fn)(void* user, const char* what, int64_t done, int64_t total, const char* unit);
SLUICE_API sluice_status sluice_context_set_log(sluice_context* context, sluice_log_fn log, void* user);
SLUICE_API sluice_status sluice_context_set_progress(sluice_context* context, sluice_progress_fn progress, void* user);

#ifdef __cplusplus
} /* extern "C" */
#endif

#endif /* SLUICE_C_BASE_H */
