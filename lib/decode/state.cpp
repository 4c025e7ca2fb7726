#include "decode/state.h"

#include <algorithm>
#include <cstring>
#include <span>

#include "base/error.h"
#include "decode/state_parts.h"
#include "io/quote.h"
#include "model/spec/settings.h"

namespace tandem::decode {

SavedState open_state(const std::filesystem::path& path, const ModelFiles& files, DType dtype) {
  return with_remedy("if the file is damaged, copy it again, or save the state again",
                     [&] { return parse_state(io::Safetensors::open(path), files, dtype); });
}

namespace {

/// Last queries are those of every layer or of none.
void check_queries(const SavedState& state, const model::ModelConfig& c, DType dtype) {
  const io::TensorEntry* first = state.file.find(queries_name(0));
  for (int layer = 0; layer < c.n_layers; ++layer) {
    const io::TensorEntry* entry = state.file.find(queries_name(layer));
    if (first == nullptr && entry == nullptr) continue;
    if (first == nullptr || entry == nullptr)
      throw input_error(state.file.where(), "tensor '{}' is missing",
                        queries_name(first == nullptr ? 0 : layer));
    const io::TensorView t = state.file.tensor(*entry);
    const io::Shape want{state.file.tensor(*first).shape[0], c.n_heads, c.head_dim};
    if (t.shape != want || t.dtype != dtype ||
        t.shape[0] > static_cast<int64_t>(state.tokens.size()))
      throw input_error(state.file.where(),
                        "tensor '{}' is {} {}, expected {} {} of at most {} tokens", t.name,
                        dtype_name(t.dtype), io::shape_text(t.shape), dtype_name(dtype),
                        io::shape_text(want), state.tokens.size());
  }
}

}  // namespace

SavedState parse_state(io::Safetensors file, const ModelFiles& files, DType dtype) {
  const std::string& where = file.where();
  const auto meta = [&](const std::string& key) {
    const auto it = file.metadata().find(key);
    return it == file.metadata().end() ? std::string() : it->second;
  };
  if (meta("format") != kStateFormat && meta("format") != kGroupedFormat)
    throw input_error(where, "is not a saved state (format {}, expected '{}' or '{}')",
                      io::quote(meta("format")), kStateFormat, kGroupedFormat)
        .hint("set model.state to a file that output.state wrote");
  if (const std::vector<std::string> changed =
          model::changed_settings(model::settings_of(files.whole_config()), meta("settings"));
      !changed.empty())
    throw input_error(where, "was saved with another model ({}): {}", io::quote(meta("model")),
                      io::escape_controls(fmt::format("{}", fmt::join(changed, ", "))))
        .hint("restore these keys of config.json, or save the state again");
  if (meta("fingerprint") != files.fingerprint)
    throw input_error(where, "was saved with another model ({})", io::quote(meta("model")))
        .hint("use the model that saved the state, with the same weights (or seed, if synthetic)");
  if (meta("compute") != dtype_name(dtype))
    throw input_error(where, "holds a KV cache of {}, this run computes in {}",
                      io::quote(meta("compute")), dtype_name(dtype))
        .hint("set cache.dtype and model.compute to the type of the state");
  // States of earlier versions do not say.
  const std::string activations = meta(kActivationsKey), own = activations_of(files);
  if (!activations.empty() && activations != own)
    throw input_error(where, "was saved with model.activations {}, this run has {}", activations,
                      own)
        .hint(
            "set model.activations and model.weights as in the run that saved it, or save the "
            "state again");
  const std::vector<kv::PageGroup> groups =
      kv::page_groups(model::geometry_of(files.whole_config(), dtype));
  if (const std::string listed = kv::page_groups_text(groups);
      meta("format") == kGroupedFormat && meta(kGroupsKey) != listed)
    throw input_error(where, "lists page groups {}, expected {} (windows and their layers)",
                      io::quote(meta(kGroupsKey)), io::quote(listed))
        .hint("use the model that saved the state, or save the state again");
  const io::TensorView tokens = file.tensor(kTokensName);
  if (tokens.dtype != DType::i32 || tokens.shape.size() != 1 || tokens.shape[0] == 0)
    throw input_error(where, "tensor 'tokens': expected a non-empty list of I32, found {}",
                      io::shape_text(tokens.shape));
  const std::string chat_date = meta("chat_date");
  SavedState state{.file = std::move(file),
                   .tokens = std::vector<int32_t>(static_cast<size_t>(tokens.shape[0])),
                   .chat_date = chat_date};
  state.file.read(tokens, 0, std::as_writable_bytes(std::span(state.tokens)));
  for (const int32_t id : state.tokens)
    if (id < 0 || id >= files.config.vocab_size)
      throw input_error(state.file.where(), "token id {} is outside the vocabulary of {}", id,
                        files.config.vocab_size);
  const model::ModelConfig& c = files.whole_config();
  const io::Shape page_shape{c.n_kv_heads, kPageTokens, c.head_dim};
  const int pages = pages_of(state.tokens.size());
  const auto check_page = [&](int page, const std::vector<int>& layers) {
    bool present = page == pages - 1;  // policies give back pages, but never the last
    for (const int layer : layers)
      for (const char which : {'k', 'v'})
        present = present || state.file.find(page_name(which, layer, page)) != nullptr;
    for (const int layer : layers)
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
  };
  for (int page = 0; page < pages; ++page)
    for (const kv::PageGroup& group : groups) check_page(page, group.layers);
  check_queries(state, c, dtype);
  return state;
}

namespace {

/// Reads the last queries, as many as the policies of this run choose by, or as the state has where
/// they do without.
void fill_queries(const SavedState& state, const model::Shard& shard, kv::QueryRing& ring,
                  int slot) {
  const int n = static_cast<int>(state.tokens.size());
  const int required = std::min(n, ring.spec().required);
  const io::TensorEntry* first = state.file.find(queries_name(0));
  const int64_t held = first == nullptr ? 0 : state.file.tensor(*first).shape[0];
  if (held < required)
    throw input_error(state.file.where(),
                      "holds the last {} queries, cache.kind of this run needs {}", held, required)
        .hint("save the state again with this run's cache section, or choose another cache.kind");
  const int wanted = static_cast<int>(std::min<int64_t>({n, ring.spec().window, held}));
  if (wanted == 0) return;
  const size_t row = ring.spec().row_bytes();  // of the heads that are here
  std::vector<std::byte> rows(static_cast<size_t>(wanted) * row), stored;
  for (int layer = 0; layer < ring.spec().n_layers; ++layer) {
    const io::TensorView all = state.file.tensor(queries_name(layer));
    const size_t head = static_cast<size_t>(all.shape[2]) * dtype_bytes(all.dtype);
    stored.resize(all.bytes.size());
    state.file.read(all, 0, stored);  // whole, so that its checksums are checked
    for (size_t i = 0; i < static_cast<size_t>(wanted); ++i) {
      const size_t from = static_cast<size_t>(held - wanted) + i;
      std::memcpy(rows.data() + i * row,
                  stored.data() + (from * static_cast<size_t>(all.shape[1]) +
                                   static_cast<size_t>(shard.heads.first)) *
                                      head,
                  row);
    }
    ring.write(slot, layer, n - wanted, wanted, rows.data());
  }
}

/// Gives pages to a new sequence and fills them.
void fill(const SavedState& state, const model::Shard& shard, kv::Cache& cache, int slot) {
  const int n = static_cast<int>(state.tokens.size());
  cache.adopt_pages(slot, n, [&](int layer, int page) {
    return state.file.find(page_name('k', layer, page)) != nullptr;
  });
  std::vector<std::byte> staging;  // of a page on its way to a GPU, or to eight bits
  for (int page = 0; page < pages_of(state.tokens.size()); ++page)
    for (int layer = 0; layer < cache.geometry().n_layers; ++layer) {
      const int32_t id = cache.whole_store(layer).page(slot, page);
      if (id < 0) continue;
      for (const char which : {'k', 'v'}) {
        const io::TensorView t = state.file.tensor(page_name(which, layer, page));
        const StatePage to(cache.whole_store(layer), layer, which, id);
        const size_t head = t.bytes.size() / static_cast<size_t>(t.shape[0]);
        const size_t begin = static_cast<size_t>(shard.kv_heads.first) * head;
        if (const auto rows = to.in_place(); !rows.empty()) {
          state.file.read(t, begin, rows);
          continue;
        }
        staging.resize(to.bytes());
        state.file.read(t, begin, staging);
        to.write(staging.data(), cache.store().exec());
      }
    }
  if (const int token = cache.missing_token(slot, n); token >= 0)
    throw input_error(state.file.where(), "lacks token {}, which cache.kind {} of this run needs",
                      token, cache.kind_of(slot))
        .hint("use the cache section of the run that saved the state, or lower sinks and recent");
  if (cache.queries() != nullptr) fill_queries(state, shard, *cache.queries(), slot);
  cache.adopt_prompt(slot);
}

}  // namespace

int restore_state(const SavedState& state, Engine& engine, kv::Readers readers) {
  for (const recipe::Sparse& sparse : engine.spec().sparse)
    if (ffn::needs_of(sparse).prompts)
      throw input_error(state.file.where(),
                        "has no FFN neuron statistics, which sparse.kind {} needs",
                        recipe::yaml_text(sparse.kind))
          .hint(
              "prefill the prompt again, or choose sparse.kind magnitude, cats or cats_threshold");
  const auto saved = state.file.metadata().find("rope_factors");
  const std::string factors = saved == state.file.metadata().end() ? "" : saved->second;
  if (factors != engine.rope_factors())
    throw input_error(state.file.where(),
                      "holds keys with the {} RoPE factors of {}, but this run has the {} ones",
                      io::quote(factors), engine.files().name, engine.rope_factors())
        .hint(fmt::format("save the state in a run whose longest sequence is likewise {} {} tokens",
                          engine.rope_factors() == "long" ? "above" : "within",
                          engine.files().config.ropes.front().scaling.original_context));
  const int slot = engine.cache().create(readers);
  try {
    fill(state, engine.files().shard, engine.cache(), slot);
  } catch (...) {
    engine.cache().release(slot);
    throw;
  }
  return slot;
}

}  // namespace tandem::decode
