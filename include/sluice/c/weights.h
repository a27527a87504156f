/* SPDX-License-Identifier: Apache-2.0
 * Part of sluice/c.h: other weights for an engine that runs, its memory given back for a while, its tensors. */
#ifndef SLUICE_C_WEIGHTS_H
#define SLUICE_C_WEIGHTS_H

#include "sluice/c/engine.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Stops the engine between two steps, for an update of the weights; new requests are accepted and wait. What happens to
 * the answers that are under way: ABORT cancels them; RETRACT lets them wait, and computes their keys and values again
 * afterwards; IN_PLACE keeps their keys and values, and they go on. */
typedef int32_t sluice_pause;
enum { SLUICE_PAUSE_ABORT = 0, SLUICE_PAUSE_RETRACT = 1, SLUICE_PAUSE_IN_PLACE = 2 };
SLUICE_API sluice_status sluice_engine_pause(sluice_engine* engine, sluice_pause mode);
SLUICE_API sluice_status sluice_engine_continue(sluice_engine* engine);
/* All calls that replace weights do so between two steps, and forget cached prefixes. What runs is cancelled, but in an
 * engine that is paused it goes on with the new weights, unless `abort` is 1. They need memory for both. After an error
 * the old weights stay, all of them.
 *
 * The weights of another checkpoint of the same model: its tensors, also where load_format was "dummy". */
SLUICE_API sluice_status sluice_engine_update_weights(sluice_engine* engine, const char* folder);

/* A tensor in host memory, as the checkpoint has it: its name, its type, its shape, row by row without gaps. */
typedef struct sluice_tensor {
  size_t struct_size;
  const char* name;
  const char* dtype; /* "bfloat16", "float32", "float16", "float8_e4m3fn", "float8_e8m0fnu", "uint8", "int8", "int16",
                        "int32", "int64", "bool", "float64" */
  const int64_t* shape; /* [rank] */
  size_t rank;
  const void* data;
} sluice_tensor;
/* Some tensors of the checkpoint, of its types and shapes; all of them or none. In an engine with
 * sluice_model_options.quantization they are quantised here, to the bits of the loader. Copied: the caller's memory is
 * free after the call. Between begin_update and end_update tensors are only kept, and end_update puts all of them in
 * place at once; it is an error where there are none. Releasing the weights and sluice_engine_update_weights drop what
 * came since begin_update, and that ends the update. A second begin_update before the end is refused. SLUICE_BUSY while
 * the weights are released.
 *
 * An engine of dummy weights (load_format "dummy") takes every tensor of a checkpoint of its configuration so, in any
 * number of calls; of two of one name the later one counts. The dummies run until none that the model needs is missing,
 * at the end of a call or, if begin_update was called, in end_update. Then the model is built as from a folder, with
 * the loader's checks; after an error the dummies stay, and so does what has come. Until then a name that the model
 * does not need is kept, and its shape is the caller's to answer for. Then what the model does not use is left out of
 * sluice_engine_get_weights. Later calls may bring single tensors; a name that the model does not know and that never
 * came is refused. */
SLUICE_API sluice_status sluice_engine_update_tensors(sluice_engine* engine, const sluice_tensor* tensors, size_t count,
                                                      int abort);
SLUICE_API sluice_status sluice_engine_begin_update(sluice_engine* engine);
SLUICE_API sluice_status sluice_engine_end_update(sluice_engine* engine, int abort);
/* Of an engine of dummy weights: *total tensors are needed, *come of them have come, and the first other one is
 * `missing`, as sluice_moe_explain writes text; empty: none. *total is 0 where the weights are a folder's. */
SLUICE_API sluice_status sluice_engine_sent_tensors(const sluice_engine* engine, int64_t* come, int64_t* total,
                                                    char* missing, size_t size, size_t* needed);

/* Gives memory back to the system for a while: the weights, the cache of keys and values, or both with |. Nothing may
 * run: SLUICE_BUSY. Weights come back from the checkpoint's files, or as dummies. Until all is back, and every tensor
 * that sluice_engine_update_tensors had put in place has been brought again, submit gives SLUICE_BUSY. */
typedef int32_t sluice_memory;
enum { SLUICE_MEMORY_WEIGHTS = 1, SLUICE_MEMORY_KV_CACHE = 2 };
SLUICE_API sluice_status sluice_engine_release_memory(sluice_engine* engine, sluice_memory memory);
SLUICE_API sluice_status sluice_engine_resume_memory(sluice_engine* engine, sluice_memory memory);

/* The tensors that the running weights were made of, in the order of their names; later updates do not change them.
 * SLUICE_BAD_FILE: a file of the checkpoint was written to since it was loaded. */
typedef struct sluice_weights sluice_weights;
SLUICE_API sluice_status sluice_engine_get_weights(const sluice_engine* engine, sluice_weights** out);
SLUICE_API void sluice_weights_destroy(sluice_weights* weights);
SLUICE_API sluice_status sluice_weights_count(const sluice_weights* weights, size_t* out);
/* SLUICE_NOT_FOUND: no tensor has this name. */
SLUICE_API sluice_status sluice_weights_find(const sluice_weights* weights, const char* name, size_t* index);
/* The pointers are valid until the next such call and the weights' end; data may be a view of the file. */
SLUICE_API sluice_status sluice_weights_get(sluice_weights* weights, size_t index, sluice_tensor* out);
/* The SHA-256 of its bytes in hexadecimal, 65 bytes with the final zero. */
SLUICE_API sluice_status sluice_weights_checksum(const sluice_weights* weights, size_t index, char* buffer,
                                                 size_t size);
/* `count` elements from `first` on, in the order of their bytes; exact but for integers beyond 2^53. */
SLUICE_API sluice_status sluice_weights_values(const sluice_weights* weights, size_t index, int64_t first,
                                               int64_t count, double* values);

#ifdef __cplusplus
} /* extern "C" */
#endif

#endif /* SLUICE_C_WEIGHTS_H */
