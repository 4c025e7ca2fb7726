#include <algorithm>
#include <cmath>
#include <vector>

#include "kv/policies/policies.h"
#include "kv/policies/scratch.h"
#include "kv/policies/sparse_policy.h"
#include "tandem/policy.h"

namespace tandem::kv {
namespace {

/// errors   kind usage: there is no such key
void check_key(int kv_head, int n_kv_heads, int token, int n_tokens) {
  if (kv_head < 0 || kv_head >= n_kv_heads || token < 0 || token >= n_tokens)
    throw usage_error("Keys::read",
                      "expected a KV head below {} and a token below {}, found {} and {}",
                      n_kv_heads, n_tokens, kv_head, token);
}

/// Keys of a slot of the store.
class SlotKeys final : public Keys {
 public:
  SlotKeys(const PagedStore& store, int slot) : store_(store), slot_(slot) {}
  int n_tokens() const override { return store_.length(slot_); }
  void read(int layer, int kv_head, int token, float* out) const override {
    if (layer < 0 || layer >= store_.spec().n_layers)
      throw usage_error("Keys::read", "expected a layer below {}, found {}", store_.spec().n_layers,
                        layer);
    check_key(kv_head, store_.spec().n_kv_heads, token, n_tokens());
    store_.keys(layer, slot_, kv_head).read(token, out);
  }

 private:
  const PagedStore& store_;
  int slot_;
};

/// Keys that a query may read, under its layer and KV head. Committed tokens come first, then the
/// drafted ones on the query's path.
class QueryKeys final : public Keys {
 public:
  QueryKeys(const KeyQuery& query, const Step& step) : query_(query) {
    if (!step.is_tree()) return;
    const auto after = std::ranges::upper_bound(step.row_begin, query.row);
    base_ = step.base[static_cast<size_t>(after - step.row_begin.begin() - 1)];
    const auto words = static_cast<size_t>(step.mask_words);
    const uint64_t* mask = step.tree_mask.data() + static_cast<size_t>(query.row) * words;
    for (size_t bit = 0; bit < words * 64; ++bit)
      if ((mask[bit / 64] >> (bit % 64) & 1) != 0) path_.push_back(base_ + static_cast<int>(bit));
  }
  int n_tokens() const override { return query_.position + 1; }
  void read(int layer, int kv_head, int token, float* out) const override {
    if (layer != query_.layer || kv_head != query_.kv_head)
      throw usage_error("Query::keys", "has keys of layer {} and KV head {}, not of {} and {}",
                        query_.layer, query_.kv_head, layer, kv_head);
    check_key(0, 1, token, n_tokens());
    query_.keys.read(place(token), out);
  }
  /// Returns the place of a token's key in the cache.
  int32_t place(int32_t token) const {
    return token < base_ || path_.empty() ? token : path_[static_cast<size_t>(token - base_)];
  }

 private:
  const KeyQuery& query_;
  int base_ = 0;
  std::vector<int32_t> path_;  // tree rows only; ends with the row itself
};

/// A policy of a program that uses the library.
class ExternalPolicy final : public SelectingPolicy {
 public:
  ExternalPolicy(const recipe::Cache& cache, const Bounds& bounds)
      : SelectingPolicy(cache, bounds), policy_(cache.policy) {
    if (bounds.on_gpu())
      throw recipe_error("cache", "policy {} runs only on the CPU", kind())
          .hint("open the model with device cpu");
  }

  void set_up(Arena&, const std::string&, const Connections&) override {
    const Geometry& g = geometry();
    policy_->begin({g.n_layers, g.n_heads, g.n_kv_heads, g.head_dim});
  }

  void select(int layer, const Step& step, const Tensor&, AttendPlan& plan) override {
    if (ordinal(layer) < 0) return plan.add({.window = geometry().window(layer)});
    step_ = &step;
    plan.selector = this;
  }
  void on_prompt(int slot, const PagedStore& store) override {
    policy_->on_tokens(slot, SlotKeys(store, slot));
  }
  void on_commit(std::span<const int32_t> slots, const PagedStore& store) override {
    for (const int32_t slot : slots) policy_->on_tokens(slot, SlotKeys(store, slot));
  }
  void on_fork(int from, int to) override { policy_->on_fork(from, to); }
  void on_release(int slot) override { policy_->on_end(slot); }
  void on_truncate(int slot, int n, const PagedStore&) override { policy_->on_rewind(slot, n); }
  KeysRead keys_read(int layer, int length) const override {
    return {.total = geometry().visible(layer, length)};
  }

  size_t scratch_bytes() const override { return Scratch(nullptr, *this).cutter.bytes(); }
  void select_keys(const KeyQuery& query, std::byte* scratch,
                   std::span<KeyList> lists) const override {
    const Scratch s(scratch, *this);
    const QueryKeys keys(query, *step_);
    Selection selection;
    for (size_t h = 0; h < lists.size(); ++h) {
      query.read_q(h, {s.q, static_cast<size_t>(geometry().head_dim)});
      selection.tokens.clear();
      selection.log_weights.clear();
      const int head = query.first_head + static_cast<int>(h);
      policy_->select({.sequence = query.slot,
                       .layer = query.layer,
                       .head = head,
                       .kv_head = query.kv_head,
                       .position = query.position,
                       .scale = geometry().scale(query.layer).f32(),
                       .q = {s.q, static_cast<size_t>(geometry().head_dim)},
                       .keys = keys},
                      selection);
      check(selection, query, head);
      int32_t* ids = s.ids + h * static_cast<size_t>(bounds().max_tokens);
      float* bias = s.bias + h * static_cast<size_t>(bounds().max_tokens);
      std::ranges::transform(selection.tokens, ids, [&](int32_t t) { return keys.place(t); });
      std::ranges::copy(selection.log_weights, bias);
      lists[h].segments.push_back({ids, static_cast<int>(selection.tokens.size()),
                                   selection.log_weights.empty() ? nullptr : bias, nullptr});
    }
  }

 private:
  struct Scratch {
    ScratchCutter cutter;
    float *q, *bias;
    int32_t* ids;

    Scratch(std::byte* base, const ExternalPolicy& p)
        : cutter(base),
          q(cutter.take<float>(static_cast<size_t>(p.geometry().head_dim))),
          bias(cutter.take<float>(p.group() * static_cast<size_t>(p.bounds().max_tokens))),
          ids(cutter.take<int32_t>(p.group() * static_cast<size_t>(p.bounds().max_tokens))) {}
  };

  void check(const Selection& s, const KeyQuery& query, int head) const {
    const auto refuse = [&](const std::string& found) {
      return input_error(
          fmt::format("policy {}", kind()),
          "layer {}, head {}, position {}: expected at least one of the tokens 0 to {}, "
          "none twice, found {}",
          query.layer, head, query.position, query.position, found);
    };
    if (s.tokens.empty()) throw refuse("no token");
    if (!s.log_weights.empty() && s.log_weights.size() != s.tokens.size())
      throw refuse(fmt::format("{} tokens and {} weights", s.tokens.size(), s.log_weights.size()));
    for (const float w : s.log_weights)
      if (!std::isfinite(w)) throw refuse(fmt::format("weight {}", w));
    std::vector<uint8_t> seen(static_cast<size_t>(query.position) + 1);
    for (const int32_t t : s.tokens) {
      if (t < 0 || t > query.position) throw refuse(fmt::format("token {}", t));
      if (seen[static_cast<size_t>(t)]++ != 0) throw refuse(fmt::format("token {} twice", t));
    }
  }

  std::shared_ptr<tandem::Policy> policy_;
  const Step* step_ = nullptr;  // in hand
};

}  // namespace

std::unique_ptr<Policy> make_external(const recipe::Cache& cache, const Bounds& bounds) {
  return std::make_unique<ExternalPolicy>(cache, bounds);
}

}  // namespace tandem::kv
