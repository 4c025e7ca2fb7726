#include "decode/state.h"

#include <fmt/format.h>

#include <algorithm>
#include <deque>
#include <map>
#include <span>

#include "base/check.h"
#include "io/quote.h"

namespace tandem::decode {
namespace {

constexpr const char* kFormat = "tandem.state/1";
constexpr const char* kTokens = "tokens";

std::string page_name(char which, int layer, int page) {
  return fmt::format("{}.{}.{}", which, layer, page);
}

/// One page of one layer in the pool.
std::span<std::byte> page_bytes(const Tensor& pool, int32_t page) {
  const Tensor t = pool.slice(page, 1);
  return {static_cast<std::byte*>(t.raw()), t.bytes()};
}

int pages_of(size_t tokens) { return static_cast<int>((tokens + kPageTokens - 1) / kPageTokens); }

}  // namespace

void save_state(const std::filesystem::path& path, const Engine& engine, int slot,
                std::span<const int32_t> tokens) {
  const kv::Cache& cache = engine.cache();
  TANDEM_CHECK(static_cast<int>(tokens.size()) == cache.length(slot), "{} tokens, {} in the cache",
               tokens.size(), cache.length(slot));
  const kv::Geometry& g = cache.geometry();
  const Exec& exec = cache.store().exec();
  std::deque<std::vector<std::byte>> copies;  // of pages in a GPU's memory
  const auto on_host = [&](std::span<std::byte> page) {
    if (!exec.on_gpu()) return page;
    std::vector<std::byte>& copy = copies.emplace_back(page.size());
    exec.queue->copy_out(copy.data(), page.data(), page.size());
    return std::span(copy);
  };
  std::vector<io::TensorView> tensors;
  tensors.push_back(
      {kTokens, DType::i32, {static_cast<int64_t>(tokens.size())}, std::as_bytes(tokens)});
  for (int page = 0; page < pages_of(tokens.size()); ++page) {
    const int32_t id = cache.store().page(slot, page);
    if (id < 0) continue;
    for (int layer = 0; layer < g.n_layers; ++layer)
      for (const char which : {'k', 'v'})
        tensors.push_back(
            {page_name(which, layer, page),
             g.dtype,
             {g.n_kv_heads, kPageTokens, g.head_dim},
             on_host(page_bytes(which == 'k' ? cache.k(layer) : cache.v(layer), id))});
  }
  if (exec.on_gpu()) exec.queue->wait();
  io::write_safetensors(path, tensors,
                        {{"format", kFormat},
                         {"model", engine.files().name},
                         {"fingerprint", engine.files().fingerprint},
                         {"compute", dtype_name(g.dtype)},
                         {"policy", std::string(cache.policy_of(slot).name())}});
}

SavedState open_state(const std::filesystem::path& path, const ModelFiles& files, DType dtype) {
  return parse_state(io::Safetensors::open(path), files, dtype);
}

SavedState parse_state(io::Safetensors file, const ModelFiles& files, DType dtype) {
  const std::string& where = file.where();
  const auto meta = [&](const std::string& key) {
    const auto it = file.metadata().find(key);
    return it == file.metadata().end() ? std::string() : it->second;
  };
  if (meta("format") != kFormat)
    throw input_error(where, "is not a saved state (format {}, expected '{}')",
                      io::quote(meta("format")), kFormat)
        .hint("model.state takes a file that output.state wrote");
  if (meta("fingerprint") != files.fingerprint)
    throw input_error(where, "was saved with another model ({})", io::quote(meta("model")))
        .hint("use the model that wrote the state, with the same weights (or seed, if synthetic)");
  if (meta("compute") != dtype_name(dtype))
    throw input_error(where, "holds {} keys and values, this run computes in {}",
                      io::quote(meta("compute")), dtype_name(dtype))
        .hint("set model.compute to what the state holds");
  const io::TensorView tokens = file.tensor(kTokens);
  if (tokens.dtype != DType::i32 || tokens.shape.size() != 1 || tokens.shape[0] == 0)
    throw input_error(where, "tensor 'tokens' must be a non-empty list of I32, found {}",
                      io::shape_text(tokens.shape));
  SavedState state{std::move(file), std::vector<int32_t>(static_cast<size_t>(tokens.shape[0]))};
  state.file.read(tokens, 0, std::as_writable_bytes(std::span(state.tokens)));
  for (const int32_t id : state.tokens)
    if (id < 0 || id >= files.config.vocab_size)
      throw input_error(state.file.where(), "token id {} is outside the vocabulary of {}", id,
                        files.config.vocab_size);
  const model::ModelConfig& c = files.config;
  const io::Shape page_shape{c.n_kv_heads, kPageTokens, c.head_dim};
  const int pages = pages_of(state.tokens.size());
  for (int page = 0; page < pages; ++page) {
    bool present = page == pages - 1;  // policies give back pages, but never the last
    for (int layer = 0; layer < c.n_layers; ++layer)
      for (const char which : {'k', 'v'})
        present = present || state.file.find(page_name(which, layer, page)) != nullptr;
    for (int layer = 0; layer < c.n_layers; ++layer)
      for (const char which : {'k', 'v'}) {
        const io::TensorEntry* entry = state.file.find(page_name(which, layer, page));
        if (entry == nullptr && present)
          throw input_error(state.file.where(), "tensor '{}' is missing",
                            page_name(which, layer, page));
        if (entry == nullptr) continue;
        const io::TensorView t = state.file.tensor(*entry);
        if (t.shape != page_shape || t.dtype != dtype)
          throw input_error(state.file.where(), "tensor '{}' is {} {}, expected {} {}", t.name,
                            dtype_name(t.dtype), io::shape_text(t.shape), dtype_name(dtype),
                            io::shape_text(page_shape));
      }
  }
  return state;
}

namespace {

/// Gives pages to a new sequence and fills them.
void fill(const SavedState& state, kv::Cache& cache, int slot) {
  kv::PagedStore& store = cache.store();
  const int n = static_cast<int>(state.tokens.size());
  store.reserve(slot, n);
  std::vector<std::byte> staging;  // of a page on its way to a GPU
  for (int page = 0; page < pages_of(state.tokens.size()); ++page) {
    if (state.file.find(page_name('k', 0, page)) == nullptr) {
      store.drop(slot, page * kPageTokens, (page + 1) * kPageTokens);
      continue;
    }
    const int32_t id = store.page(slot, page);
    for (int layer = 0; layer < cache.geometry().n_layers; ++layer)
      for (const char which : {'k', 'v'}) {
        const io::TensorView t = state.file.tensor(page_name(which, layer, page));
        const auto to = page_bytes(which == 'k' ? cache.k(layer) : cache.v(layer), id);
        if (store.exec().on_gpu()) {
          staging.resize(to.size());
          state.file.read(t, 0, staging);
          store.exec().queue->copy_in(to.data(), staging.data(), staging.size());
        } else {
          state.file.read(t, 0, to);
        }
      }
  }
  store.set_length(slot, n);
  if (const int token = cache.missing_token(slot, n); token >= 0)
    throw input_error(state.file.where(), "lacks token {}, which cache.kind {} of this run needs",
                      token, cache.policy_of(slot).name())
        .hint("use the cache section of the run that saved the state, or smaller sinks and recent");
  cache.adopt_prompt(slot);
}

}  // namespace

int restore_state(const SavedState& state, Engine& engine, kv::Readers readers) {
  const int slot = engine.cache().create(readers);
  try {
    fill(state, engine.cache(), slot);
  } catch (...) {
    engine.cache().release(slot);
    throw;
  }
  return slot;
}

}  // namespace tandem::decode
