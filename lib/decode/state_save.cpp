#include <algorithm>
#include <iterator>
#include <utility>
#include <vector>

#include "base/check.h"
#include "decode/state.h"
#include "decode/state_parts.h"
#include "model/spec/settings.h"

namespace tandem::decode {
namespace {

/// The tensors of a state, each made when it is written: one of them stands in memory next to the
/// cache.
class Contents {
 public:
  Contents(Engine& engine, int slot, std::span<const int32_t> tokens)
      : engine_(engine), cache_(engine.cache()), slot_(slot), tokens_(tokens) {
    const kv::Geometry& g = cache_.geometry();
    const model::ModelConfig& whole = engine.files().whole_config();
    add({.which = 't'}, {kTokensName, DType::i32, {std::ssize(tokens)}, {}});
    for (int page = 0; page < pages_of(tokens.size()); ++page)
      for (int layer = 0; layer < g.n_layers; ++layer) {
        const int32_t id = cache_.whole_store(layer).page(slot, page);
        for (const char which : {'k', 'v'})
          if (id >= 0)
            add({which, layer, id}, {page_name(which, layer, page),
                                     g.dtype,
                                     {whole.n_kv_heads, kPageTokens, g.head_dim},
                                     {}});
      }
    for (int layer = 0; cache_.queries() != nullptr && layer < g.n_layers; ++layer)
      add({.which = 'q', .layer = layer},
          {queries_name(layer), g.dtype, {n_queries(), whole.n_heads, g.head_dim}, {}});
  }

  /// In the order of the file, whose types only shrink: ranks make them in one order.
  const std::vector<io::TensorView>& tensors() const { return tensors_; }

  /// The bytes of tensor `i`, until the next one is made; of all ranks, which call it together.
  std::span<const std::byte> make(size_t i) {
    const Item& item = items_[i];
    if (item.which == 't') return std::as_bytes(tokens_);
    const std::span<const std::byte> own = item.which == 'q' ? queries(item.layer) : page(item);
    if (engine_.exec().comm == nullptr) return own;
    const bool is_page = item.which != 'q';
    const kv::Geometry& g = cache_.geometry();
    const model::ModelConfig& whole = engine_.files().whole_config();
    const int head_rows = is_page ? kPageTokens : 1;
    joined_ = join_heads(
        own,
        {.n_rows = is_page ? 1 : static_cast<size_t>(tensors_[i].shape[0]),
         .head_bytes = static_cast<size_t>(head_rows * g.head_dim) * dtype_bytes(g.dtype),
         .part = is_page ? &model::Shard::kv_heads : &model::Shard::heads,
         .n_heads = is_page ? whole.n_kv_heads : whole.n_heads},
        engine_.files(), *engine_.exec().comm);
    return joined_;
  }

 private:
  struct Item {
    char which;  // 't': the tokens; 'k', 'v': a page; 'q': last queries
    int layer = 0;
    int32_t page = 0;
  };

  void add(const Item& item, io::TensorView tensor) {
    items_.push_back(item);
    tensors_.push_back(std::move(tensor));
  }

  std::span<const std::byte> page(const Item& item) {
    const StatePage page(cache_.whole_store(item.layer), item.layer, item.which, item.page);
    if (const auto rows = page.in_place(); !rows.empty()) return rows;
    copy_.resize(page.bytes());
    page.read(copy_.data(), engine_.exec());
    wait();
    return copy_;
  }

  /// The last queries of the sequence, those that policies choose by: [n_queries()][own heads][d].
  std::span<const std::byte> queries(int layer) {
    const kv::QueryRing& ring = *cache_.queries();
    const int n = n_queries();
    copy_.resize(static_cast<size_t>(n) * ring.spec().row_bytes());
    ring.read(slot_, layer, cache_.length(slot_) - n, n, copy_.data());
    wait();
    return copy_;
  }

  int n_queries() const {
    const kv::QueryRing& ring = *cache_.queries();
    const int length = cache_.length(slot_);
    return length - std::min(length, std::max(length - ring.spec().window, ring.begin(slot_)));
  }

  void wait() const {
    if (engine_.exec().on_gpu()) engine_.exec().queue->wait();
  }

  Engine& engine_;
  kv::Cache& cache_;
  int slot_;
  std::span<const int32_t> tokens_;
  std::vector<Item> items_;
  std::vector<io::TensorView> tensors_;
  std::vector<std::byte> copy_, joined_;
};

}  // namespace

void save_state(const std::filesystem::path& path, Engine& engine, int slot,
                std::span<const int32_t> tokens, io::Existing existing,
                const std::string& chat_date) {
  kv::Cache& cache = engine.cache();
  cache.refuse_quantized("saved states");
  cache.residence().store(slot);
  TANDEM_CHECK(std::ssize(tokens) == cache.length(slot), "found {} tokens, but {} in the cache",
               tokens.size(), cache.length(slot));
  Contents contents(engine, slot, tokens);
  const kv::Geometry& g = cache.geometry();
  if (const Comm* comm = engine.exec().comm; comm != nullptr && comm->rank() > 0) {  // 0 writes
    for (size_t i = 0; i < contents.tensors().size(); ++i) contents.make(i);
    return;
  }
  const std::vector<kv::PageGroup> groups = kv::page_groups(g);
  std::map<std::string, std::string> metadata = {
      {"format", groups.size() > 1 ? kGroupedFormat : kStateFormat},
      {"model", engine.files().name},
      {"fingerprint", engine.files().fingerprint},
      {"settings", model::settings_text(model::settings_of(engine.files().whole_config()))},
      {"compute", dtype_name(g.dtype)},
      {kActivationsKey, activations_of(engine.files())},
      {"rope_factors", std::string(engine.rope_factors())},
      {"policy", cache.kind_of(slot)},
      {"chat_date", chat_date}};
  if (groups.size() > 1) metadata[kGroupsKey] = kv::page_groups_text(groups);
  io::write_safetensors(
      path, contents.tensors(), metadata,
      [&](size_t i, const io::ByteSink& sink) { sink(contents.make(i)); },
      static_cast<size_t>(kPageTokens * g.head_dim) * dtype_bytes(g.dtype), existing);
}

}  // namespace tandem::decode
