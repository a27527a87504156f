/* SPDX-License-Identifier: Apache-2.0
 * Part of sluice/c.h: an engine, which runs many requests through one model. */
#ifndef SLUICE_C_ENGINE_H
#define SLUICE_C_ENGINE_H

#include "sluice/c/model.h"

#ifdef __cplusplus
extern "C" {
#endif

/* The checkpoint of a folder, its threads and its cache of keys and values, run by a thread of its own. Any thread may
 * call anything. */
typedef struct sluice_engine sluice_engine;

typedef struct sluice_engine_options {
  size_t struct_size;
  int threads;                       /* as sluice_context_create */
  const char* device;                /* "cpu" (also NULL), "cuda", "cuda:N"; "auto": a Hopper GPU, else the CPU */
  const sluice_model_options* model; /* NULL: all defaults */
  /* While weights are loaded, by create and by update_weights, which wait for it; on any thread. NULL: none. */
  sluice_log_fn log;
  sluice_progress_fn progress;
  void* user;
  /* 0 is each one's default. */
  int64_t context_length; /* the longest prompt with its answer, in tokens: the model's */
  int max_running;        /* answers that are worked on at once: 32 */
  int max_queued;         /* answers that may wait: 256; a call is taken whole while fewer wait */
  int64_t prefill_chunk;  /* prompt tokens per step: 512 on the CPU, 8192 on a GPU; -1: whole prompts */
  int64_t cache_tokens;   /* tokens of keys and values: as many as max_running contexts, at most 65536 or one context */
  int64_t block_size;     /* tokens that the prefix cache shares at a time: 64 */
  int no_prefix_cache;    /* 1: no prefix is found again */
  int state_snapshots;    /* states of recurrent layers (Mamba) kept for the prefix cache: 16; -1: none */
  int speculative_steps;  /* the most drafts per step from the model's own head: none; see sluice_generate_options */
  int speculative_fixed_steps; /* 1: always speculative_steps drafts */
  /* In place of cache_tokens: what weights and cache may take of the device's memory together, at most 1: none. The
   * cache is never larger than max_running contexts. */
  double mem_fraction_static;
  /* On a GPU; the CPU records nothing and reads the tokens of each step. */
  int graph_max_sequences; /* the most sequences of a step that is replayed from a CUDA graph: 256; -1: no graphs */
  int no_overlap;          /* 1: a step begins after the tokens of the one before were read */
} sluice_engine_options;

/* options NULL: all defaults. */
SLUICE_API sluice_status sluice_engine_create(const char* folder, const sluice_engine_options* options,
                                              sluice_engine** out);
/* Ends what runs: its streams get last events that say cancelled. */
SLUICE_API void sluice_engine_destroy(sluice_engine* engine);

typedef struct sluice_engine_info {
  size_t struct_size;
  int64_t context_length, cache_tokens, cache_bytes;
  int max_running, max_queued;
  int64_t running, queued; /* answers, now */
  int64_t weight_updates;  /* how often the weights were replaced */
} sluice_engine_info;
SLUICE_API sluice_status sluice_engine_get_info(const sluice_engine* engine, sluice_engine_info* out);
/* As the functions of a model. */
SLUICE_API sluice_status sluice_engine_get_model_info(const sluice_engine* engine, sluice_model_info* out);
SLUICE_API sluice_status sluice_engine_encode(const sluice_engine* engine, const char* text, size_t bytes, int32_t* ids,
                                              size_t capacity, size_t* count);
SLUICE_API sluice_status sluice_engine_decode(const sluice_engine* engine, const int32_t* ids, size_t count,
                                              int skip_special_tokens, char* buffer, size_t size, size_t* needed);
/* The ids of a chat by the checkpoint's template. messages: a JSON array of objects with role and content. variables: a
 * JSON object of further variables of the template ("tools", "enable_thinking"), or NULL. Special tokens that a message
 * spells out are plain text. generation_prompt: 1 opens the assistant's message. Ids as sluice_model_encode. */
SLUICE_API sluice_status sluice_engine_encode_chat(const sluice_engine* engine, const char* messages,
                                                   const char* variables, int generation_prompt, int32_t* ids,
                                                   size_t capacity, size_t* count);

/* What the text of an answer must be. An integer, as sluice_dtype. */
typedef int32_t sluice_grammar;
enum {
  SLUICE_GRAMMAR_NONE = 0,
  SLUICE_GRAMMAR_JSON_SCHEMA = 1,
  SLUICE_GRAMMAR_REGEX = 2,         /* the whole text matches */
  SLUICE_GRAMMAR_EBNF = 3,          /* as llama.cpp writes it; the first rule is root */
  SLUICE_GRAMMAR_STRUCTURAL_TAG = 4 /* xgrammar's JSON: free text with structured parts between tags */
};

typedef struct sluice_request {
  size_t struct_size;
  const int32_t* prompt; /* at least one id */
  size_t prompt_count;
  int64_t n;              /* answers to this prompt; 0 is read as 1 */
  int64_t max_new_tokens; /* 0: to the end of the context */
  int64_t min_new_tokens; /* before them nothing ends the answer */
  int score_only;         /* 1: no new tokens: the prompt is read, and with prompt_logprobs scored */
  double temperature;     /* 0: greedy */
  int64_t top_k;          /* 0: all */
  double top_p;           /* 0 is read as 1 */
  double min_p;
  double repetition_penalty; /* 0 is read as 1 */
  double frequency_penalty, presence_penalty;
  uint64_t seed; /* with equal seeds the same text, whatever else runs (sluice_model_info, row_invariant) */
  const int32_t* bias_tokens; /* with bias_values[i] added to the logit of bias_tokens[i] */
  const float* bias_values;
  size_t bias_count;
  const char* const* stop; /* texts that end an answer, each with a final zero */
  size_t stop_count;
  const int32_t* stop_tokens; /* beside the model's own */
  size_t stop_token_count;
  int ignore_eos;                /* 1: the model's end tokens do not end the answer */
  int include_stop;              /* 1: what ended the answer stays in the text */
  int keep_special_tokens;       /* 1: in the text */
  int logprobs;                  /* 1: of each new token, before penalties and temperature */
  int top_logprobs;              /* number of the most likely tokens to report, also for the prompt */
  const int32_t* logprob_tokens; /* tokens to report, also for the prompt */
  size_t logprob_token_count;
  int prompt_logprobs; /* 1: of the prompt's tokens from position prompt_logprobs_from on; position 0 has none */
  int64_t prompt_logprobs_from;
  sluice_grammar grammar_kind;
  const char* grammar; /* the schema, pattern or grammar; compiled by the call, and kept for the next that has it */
} sluice_request;

typedef struct sluice_logprob {
  int32_t token;
  float logprob; /* natural logarithm */
} sluice_logprob;

typedef struct sluice_token_logprobs {
  sluice_logprob chosen;
  const sluice_logprob* top; /* the most likely first, ties by id */
  size_t top_count;
  const sluice_logprob* asked; /* of logprob_tokens, in their order */
  size_t asked_count;
} sluice_token_logprobs;

/* An integer, as sluice_dtype. */
typedef int32_t sluice_finish;
enum {
  SLUICE_FINISH_NONE = 0,      /* more will come */
  SLUICE_FINISH_STOP = 1,      /* a stop token or string */
  SLUICE_FINISH_LENGTH = 2,    /* max_new_tokens, or the context is full */
  SLUICE_FINISH_CANCELLED = 3, /* by sluice_stream_cancel, an update of the weights, or the engine's end */
  SLUICE_FINISH_TIMED_OUT = 4, /* a limit of time passed; `error` says which */
  SLUICE_FINISH_ERROR = 5      /* `error` says what went wrong */
};

/* What came of one answer since its last event. Texts and tokens of its events one after the other are the answer. */
typedef struct sluice_event {
  size_t struct_size;
  size_t request; /* index of the request in its call */
  int choice;     /* 0 to n - 1 */
  const int32_t* tokens;
  size_t token_count; /* the stop token and a stop string's tokens included */
  const char* text;   /* whole characters, with a final zero */
  size_t text_bytes;
  const sluice_token_logprobs* logprobs; /* one per token when they were asked for */
  size_t logprob_count;
  const sluice_token_logprobs* prompt_logprobs; /* before the first token; of choice 0 */
  size_t prompt_logprob_count;
  sluice_finish finish;    /* of exactly one event of an answer, the last, not NONE */
  int32_t stop_token;      /* what ended it, or -1 */
  const char* stop_string; /* what ended it, or NULL */
  const char* error;       /* or NULL */
  /* Complete in the last event; the first two are right from the first token on. */
  int64_t prompt_tokens, cached_tokens; /* cached: of the prompt, found in the prefix cache */
  int64_t completion_tokens;
  int64_t drafted, accepted, verify_rounds; /* tokens guessed ahead, and right; steps that checked some */
  int64_t preemptions;
  double queue_seconds, first_token_seconds, total_seconds;
  int64_t weight_updates; /* of the engine, when the last token was made */
} sluice_event;

/* The answers to the requests of one call, read by one thread at a time. */
typedef struct sluice_stream sluice_stream;

/* All requests or none. SLUICE_BUSY: max_queued answers wait already. wake_fd: 0, or a non-blocking descriptor (an
 * eventfd, a pipe) that gets 8 bytes, the integer 1, when there is something to read: for event loops. It stays open
 * until the stream is destroyed. Nothing of the requests is needed after the call. */
SLUICE_API sluice_status sluice_engine_submit(sluice_engine* engine, const sluice_request* requests, size_t count,
                                              int wake_fd, sluice_stream** out);
/* Waits at most timeout_ms for the next event. *state: SLUICE_STREAM_EVENT, it is in *out, whose pointers are valid
 * until the next call with this stream; SLUICE_STREAM_WAITING, none has come; SLUICE_STREAM_DONE, all have been read.
 * A call with an argument that is not accepted takes no event. */
enum { SLUICE_STREAM_WAITING = 0, SLUICE_STREAM_EVENT = 1, SLUICE_STREAM_DONE = 2 };
SLUICE_API sluice_status sluice_stream_next(sluice_stream* stream, int64_t timeout_ms, sluice_event* out,
                                            int32_t* state);
/* Ends what is unfinished, of all requests; returns at once, and the last events say cancelled. */
SLUICE_API void sluice_stream_cancel(sluice_stream* stream);
/* Cancels what is unfinished, too. */
SLUICE_API void sluice_stream_destroy(sluice_stream* stream);

/* Forgets every cached prefix that no request uses. */
SLUICE_API sluice_status sluice_engine_flush_cache(sluice_engine* engine);

#ifdef __cplusplus
} /* extern "C" */
#endif

#endif /* SLUICE_C_ENGINE_H */
