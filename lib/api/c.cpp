#include "tandem/c.h"

#include <algorithm>
#include <cstring>
#include <string>

#include "tandem/tandem.h"

struct tandem_model {
  tandem::Model model;
};
struct tandem_session {
  tandem::Session session;
};

namespace {

using namespace tandem;

thread_local std::string last_error;

/// Runs `body`; keeps the message of what it throws.
template <class Result, class Body>
Result guarded(Result failure, const Body& body) {
  try {
    return body();
  } catch (const Error& e) {
    last_error = e.what();
    if (!e.hint_text().empty()) last_error += " (" + e.hint_text() + ")";
  } catch (const std::exception& e) {
    last_error = e.what();
  } catch (...) {
    last_error = "unknown exception";
  }
  return failure;
}

/// errors   kind usage: a null pointer
template <class T>
T& checked(T* pointer, const char* what) {
  if (pointer == nullptr) throw Error(ErrorKind::usage, what, "expected a pointer, found NULL");
  return *pointer;
}

Session& of(tandem_session* session) { return checked(session, "session").session; }
Model& of(tandem_model* model) { return checked(model, "model").model; }

/// Copies as much as there is room for, and returns the size of all.
template <class All, class To>
int64_t copy_within(const All& all, To* to, int64_t room, const char* what) {
  if (room > 0)
    std::copy_n(all.begin(), std::min<int64_t>(room, std::ssize(all)), &checked(to, what));
  return std::ssize(all);
}

std::span<const int32_t> ids_of(const int32_t* ids, int64_t n) {
  if (n < 0 || (ids == nullptr && n > 0))
    throw Error(ErrorKind::usage, "ids", "expected an array of token ids");
  return {ids, static_cast<size_t>(n)};
}

ModelOptions options_of(const tandem_options* o) {
  ModelOptions options;
  if (o == nullptr) return options;
  if (o->cache != nullptr) options.cache = o->cache;
  if (o->draft != nullptr) options.draft = o->draft;
  if (o->device != nullptr) options.device = o->device;
  options.context = o->context;
  if (o->sessions != 0) options.sessions = o->sessions;
  for (const char* const* s = o->set; s != nullptr && *s != nullptr; ++s)
    options.set.emplace_back(*s);
  return options;
}

Sampling sampling_of(const tandem_sampling* s) {
  Sampling how;
  if (s == nullptr) return how;
  if (s->max_tokens != 0) how.max_tokens = s->max_tokens;
  how.temperature = s->temperature;
  if (s->top_k != 0) how.top_k = s->top_k;
  if (s->top_p != 0) how.top_p = s->top_p;
  how.seed = s->seed;
  return how;
}

OnToken passed(tandem_on_token on_token, void* user) {
  if (on_token == nullptr) return {};
  return [=](const Token& t) { return on_token(user, t.id, std::string(t.text).c_str()) != 0; };
}

}  // namespace

const char* tandem_error() { return last_error.c_str(); }

tandem_model* tandem_open(const char* path, const tandem_options* options) {
  return guarded<tandem_model*>(nullptr, [&] {
    return new tandem_model{Model::open(&checked(path, "path"), options_of(options))};
  });
}

void tandem_close(tandem_model* model) { delete model; }

int tandem_vocab(tandem_model* model) {
  return guarded(-1, [&] { return of(model).vocab(); });
}

int64_t tandem_encode(tandem_model* model, const char* text, int begins, int32_t* ids,
                      int64_t room) {
  return guarded<int64_t>(-1, [&] {
    return copy_within(of(model).encode(&checked(text, "text"), begins != 0), ids, room, "ids");
  });
}

int64_t tandem_decode(tandem_model* model, const int32_t* ids, int64_t n, char* text,
                      int64_t room) {
  return guarded<int64_t>(
      -1, [&] { return copy_within(of(model).decode(ids_of(ids, n)), text, room, "text"); });
}

tandem_session* tandem_begin(tandem_model* model) {
  return guarded<tandem_session*>(nullptr, [&] { return new tandem_session{of(model).session()}; });
}

tandem_session* tandem_fork(tandem_session* session) {
  return guarded<tandem_session*>(nullptr, [&] { return new tandem_session{of(session).fork()}; });
}

tandem_session* tandem_restore(tandem_model* model, const char* file) {
  return guarded<tandem_session*>(
      nullptr, [&] { return new tandem_session{of(model).restore(&checked(file, "file"))}; });
}

int tandem_save(tandem_session* session, const char* file) {
  return guarded(-1, [&] {
    of(session).save(&checked(file, "file"));
    return 0;
  });
}

void tandem_end(tandem_session* session) { delete session; }

int tandem_append(tandem_session* session, const int32_t* ids, int64_t n) {
  return guarded(-1, [&] {
    of(session).append(ids_of(ids, n));
    return 0;
  });
}

int tandem_read(tandem_session* session, const int32_t* ids, int64_t n, float* logits) {
  return guarded(-1, [&] {
    if (n > 0) (void)checked(logits, "logits");
    const Logits all = of(session).read(ids_of(ids, n));
    std::copy(all.values.begin(), all.values.end(), logits);
    return 0;
  });
}

int tandem_rewind(tandem_session* session, int64_t n) {
  return guarded(-1, [&] {
    of(session).rewind(n);
    return 0;
  });
}

int64_t tandem_length(tandem_session* session) {
  return guarded<int64_t>(-1, [&] { return std::ssize(of(session).ids()); });
}

int64_t tandem_generate(tandem_session* session, const int32_t* ids, int64_t n,
                        const tandem_sampling* sampling, tandem_on_token on_token, void* user) {
  return guarded<int64_t>(-1, [&] {
    return std::ssize(
        of(session).generate(ids_of(ids, n), sampling_of(sampling), passed(on_token, user)).ids);
  });
}

int64_t tandem_chat(tandem_session* session, const char* message, const tandem_sampling* sampling,
                    tandem_on_token on_token, void* user) {
  return guarded<int64_t>(-1, [&] {
    return std::ssize(
        of(session)
            .chat(&checked(message, "message"), sampling_of(sampling), passed(on_token, user))
            .ids);
  });
}
