#include "machine/hardware.h"

#include <algorithm>
#include <cstddef>
#include <memory>
#include <vector>

#include "base/clock.h"
#include "base/convert.h"
#include "base/parallel.h"
#include "base/rng.h"
#include "kv/policy.h"
#include "ops/loading.h"

namespace tandem::machine {
namespace {

// Long enough that what a choice costs beyond its keys does not show.
constexpr int kTokens = 32768;
constexpr int kGroup = 4;

/// A text of random keys and values, and its codes.
class CodedText {
 public:
  explicit CodedText(int threads)
      : policy_(kv::make_policy(cache(), {.geometry = kGeometry,
                                          .max_tokens = kTokens,
                                          .total_tokens = kTokens,
                                          .hosted = true})),
        scratch_bytes_((policy_->selector()->scratch_bytes() + 63) / 64 * 64),
        arena_(plan(threads)),
        store_(store_spec(), arena_),
        scratch_(static_cast<std::byte*>(arena_.take("scratch"))) {
    policy_->set_up(arena_, "index", {});
    slot_ = store_.acquire();
    store_.reserve(slot_, kTokens);
    uint32_t tensor = 0;
    for (const Tensor& pool : {store_.k(0), store_.v(0)})
      ops::fill_random(pool.raw(), pool.dtype(),
                       {.tensor = tensor++, .n = pool.elements(), .stddev = 1}, {});
    store_.set_length(slot_, kTokens);
    policy_->on_prompt(slot_, store_);
    PhiloxStream draw(1);
    for (bf16& x : q_) x = to_bf16(static_cast<float>(draw.uniform() - 0.5));
  }

  int keys() const { return policy_->hosted()->range_begin(slot_); }
  /// The keys of a group of query heads, chosen by one of the threads.
  void choose(int thread, int kv_head, std::vector<kv::KeyList>& lists) const {
    lists.assign(kGroup, {});
    policy_->selector()->select_keys({.layer = 0,
                                      .slot = slot_,
                                      .row = 0,
                                      .position = kTokens,
                                      .kv_head = kv_head,
                                      .keys = store_.keys(0, slot_, kv_head),
                                      .first_head = kv_head * kGroup,
                                      .n_heads = kGroup,
                                      .q = q_},
                                     scratch_ + static_cast<size_t>(thread) * scratch_bytes_,
                                     lists);
  }

  static constexpr kv::Geometry kGeometry = {
      .n_layers = 1, .n_heads = 2 * kGroup, .n_kv_heads = 2, .head_dim = 128, .dtype = DType::bf16};

 private:
  static recipe::Cache cache() {
    recipe::Cache c;
    c.kind = recipe::CacheKind::hybrid;
    c.dense_layers = {};
    return c;
  }
  static kv::PagedStore::Spec store_spec() {
    constexpr int kPages = kTokens / kPageTokens;
    return {.n_layers = kGeometry.n_layers,
            .n_kv_heads = kGeometry.n_kv_heads,
            .head_dim = kGeometry.head_dim,
            .dtype = kGeometry.dtype,
            .n_pages = kPages,
            .max_slots = 1,
            .max_pages = kPages};
  }
  MemoryPlan plan(int threads) const {
    MemoryPlan plan;
    kv::PagedStore::plan(store_spec(), plan);
    policy_->plan(plan, "index");
    plan.add("scratch", scratch_bytes_ * static_cast<size_t>(threads));
    return plan;
  }

  std::unique_ptr<kv::Policy> policy_;
  size_t scratch_bytes_;
  Arena arena_;
  kv::PagedStore store_;
  std::byte* scratch_;
  int slot_ = 0;
  bf16 q_[kGroup * kGeometry.head_dim];
};

}  // namespace

double measure_code_gscores(int threads, const Interrupted& interrupted) {
  constexpr int kPasses = 5, kCalls = 4;
  const CodedText text(threads);
  double seconds = 1e300;
  for (int pass = 0; pass < kPasses; ++pass) {
    poll(interrupted);
    const Stopwatch watch;
    parallel_for(threads, threads, [&](int t) {
      std::vector<kv::KeyList> lists;
      for (int i = 0; i < kCalls; ++i)
        text.choose(t, (t + i) % CodedText::kGeometry.n_kv_heads, lists);
    });
    seconds = std::min(seconds, watch.seconds());
  }
  return 1e-9 * threads * kCalls * kGroup * text.keys() / seconds;
}

}  // namespace tandem::machine
