#pragma once
/* The C interface of the library (libtandem_c). Functions that return a pointer return NULL on
   failure, others a negative number; tandem_error says why. Texts are UTF-8. A session must not be
   used by two threads at once. */
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct tandem_model tandem_model;
typedef struct tandem_session tandem_session;

/* Returns the message of the calling thread's last failure, with its hint; valid until the next. */
const char* tandem_error(void);

typedef struct {
  const char* cache;       /* section `cache` of a recipe, such as "hybrid"; NULL = full attention */
  const char* draft;       /* section `spec.draft`, such as "ngram"; NULL = none */
  const char* device;      /* cpu, cuda or cuda:N; NULL = auto */
  int64_t context;         /* tokens of a session; 0 = the model's limit, or as many as fit */
  int sessions;            /* alive at once; 0 = 1 */
  const char* const* set;  /* further settings, "KEY=VALUE", up to a NULL; NULL = none */
} tandem_options;

typedef struct {
  int max_tokens;     /* new tokens of an answer; 0 = 256 */
  double temperature; /* 0 = greedy */
  int top_k;          /* 0 = off */
  double top_p;       /* 0 or 1 = off */
  int64_t seed;
} tandem_sampling;

/* Receives each token with its text, which may be empty, and at the end perhaps text without a
   token (id -1). Returning 0 stops generation. */
typedef int (*tandem_on_token)(void* user, int32_t id, const char* text);

/* Opens a model folder, a GGUF file or a name of a known model. options may be NULL. */
tandem_model* tandem_open(const char* path, const tandem_options* options);
/* Closes a model. Calls on its sessions fail from then on; they still have to be ended. */
void tandem_close(tandem_model* model);
int tandem_vocab(tandem_model* model);
/* Writes at most `room` token ids and returns how many the text has. If begins is not 0, the text
   gets the model's beginning-of-text token. */
int64_t tandem_encode(tandem_model* model, const char* text, int begins, int32_t* ids,
                      int64_t room);
/* Writes at most `room` bytes, without a zero at the end, and returns how many the text has. */
int64_t tandem_decode(tandem_model* model, const int32_t* ids, int64_t n, char* text,
                      int64_t room);

tandem_session* tandem_begin(tandem_model* model);
/* Returns a session with the same text, which shares its memory. */
tandem_session* tandem_fork(tandem_session* session);
tandem_session* tandem_restore(tandem_model* model, const char* file);
int tandem_save(tandem_session* session, const char* file);
void tandem_end(tandem_session* session);

/* Adds tokens as a prompt, under full attention. Returns 0. */
int tandem_append(tandem_session* session, const int32_t* ids, int64_t n);
/* Adds tokens under the cache's policy and writes the logits after each, [n, vocab] f32. */
int tandem_read(tandem_session* session, const int32_t* ids, int64_t n, float* logits);
/* Keeps only the first n tokens of the text. */
int tandem_rewind(tandem_session* session, int64_t n);
/* Returns the number of tokens of the text. */
int64_t tandem_length(tandem_session* session);
/* Adds tokens and generates an answer. Returns the number of new tokens. sampling and on_token may
   be NULL. */
int64_t tandem_generate(tandem_session* session, const int32_t* ids, int64_t n,
                        const tandem_sampling* sampling, tandem_on_token on_token, void* user);
/* Adds a user message in the model's chat template and generates the answer. */
int64_t tandem_chat(tandem_session* session, const char* message, const tandem_sampling* sampling,
                    tandem_on_token on_token, void* user);

#ifdef __cplusplus
}
#endif
