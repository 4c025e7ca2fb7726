#include "kv/policies/coded_lists.h"

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "kernels/selection/tail_numbers.h"
#include "kv/policies/scratch.h"
#include "ops/selection.h"

namespace tandem::kv {
struct CodedLists::Memory {
  ScratchCutter cutter;
  int32_t *ids, *count;
  float *masses, *origin;
  float *bias, *tail_scores, *threshold;  // of samples
  float *exact_mass, *error;              // of budgets by error
  unsigned long long* error_totals;
  ChooseCodedScratch scratch;
  int64_t mass_stride;

  Memory(std::byte* base, const CodedLists& c) : cutter(base) {
    const auto heads = static_cast<size_t>(c.bounds_.geometry.n_heads);
    const size_t lists = static_cast<size_t>(c.rows_at_once_) * heads;
    const size_t regions = static_cast<size_t>(c.codes_.score_room()) / kRegionKeys + 1;
    const size_t keys = regions * kRegionKeys;
    const auto masses_a_list = static_cast<size_t>(most_masses(static_cast<int>(keys)));
    const size_t sets = lists / static_cast<size_t>(c.heads_a_list());
    ids = cutter.take<int32_t>(sets * static_cast<size_t>(c.most_));
    count = cutter.take<int32_t>(sets);
    bias = cutter.take<float>(c.samples() ? lists * static_cast<size_t>(c.most_) : 0);
    masses = cutter.take<float>(c.has_tail() || c.by_mass() ? lists * masses_a_list : 0);
    origin = cutter.take<float>(lists);
    tail_scores = cutter.take<float>(c.samples() ? lists * keys : 0);
    threshold = cutter.take<float>(c.samples() ? lists : 0);
    exact_mass = cutter.take<float>(c.by_error() ? lists : 0);
    error = cutter.take<float>(c.by_error() ? lists : 0);
    error_totals = cutter.take<unsigned long long>(c.by_error() ? 2 : 0);
    const size_t shared_heads = c.heads_a_list() > 1 ? lists : 0;
    scratch = {.queries = cutter.take<DeviceCodeQuery>(lists),
               .q = cutter.take<int8_t>(lists * c.codes_.dims()),
               .scanned = cutter.take<KeptKey>(sets * keys),
               .counts = cutter.take<int32_t>(sets * regions),
               .orders = cutter.take<uint32_t>(sets * keys),
               .keys = cutter.take<uint32_t>(sets * keys),
               .key_stride = static_cast<int64_t>(keys),
               .region_stride = static_cast<int64_t>(regions),
               .references = cutter.take<float>(shared_heads),
               .group_scores = cutter.take<float>(
                   shared_heads > 0 ? sets * keys * shared_scores(c.heads_a_list()) : 0)};
    mass_stride = static_cast<int64_t>(masses_a_list);
  }
};

size_t CodedLists::row_bytes(const recipe::Hybrid& spec, const Bounds& bounds,
                             const KeyCodes& codes) {
  const size_t scores = spec.tail == recipe::HybridTail::sampled ? 3 : 2;
  return static_cast<size_t>(bounds.geometry.n_heads) * static_cast<size_t>(codes.score_room()) *
         ((scores - 1) * sizeof(float) + sizeof(KeptKey) + sizeof(uint32_t));
}

CodedLists::CodedLists(const recipe::Hybrid& spec, uint64_t seed, const Bounds& bounds,
                       const KeyCodes& codes, const TokenIndex& index, int rows_at_once)
    : spec_(spec),
      seed_(seed),
      bounds_(bounds),
      codes_(codes),
      begin_(index.begin()),
      max_keys_(std::max(0, index.wanted_end(0, bounds.max_tokens, true) - index.begin())),
      rows_at_once_(rows_at_once) {
  const int chosen =
      std::max(spec.kLeastExact, static_cast<int>(std::lround(spec.exact * max_keys_)));
  const int sampled = samples() ? most_sampled(static_cast<float>(most_wanted(max_keys_))) : 0;
  check_room();
  most_ = max_keys_ > 0 ? begin_ + std::min(max_keys_, chosen + sampled) : 0;
}

void CodedLists::check_room() const {
  const int64_t has = bounds_.block_shared_bytes;
  if (has == 0 || choice_shared_bytes(max_keys_, heads_a_list()) <= has) return;
  int first_too_many = 0;
  for (int n = max_keys_; n > 0;) {  // a bisection: n sizes from there on may be the first
    const int half = n / 2;
    const bool fits = choice_shared_bytes(first_too_many + half, heads_a_list()) <= has;
    if (fits) first_too_many += half + 1;
    n = fits ? n - half - 1 : half;
  }
  const int most = std::max(first_too_many - 1, 0);
  throw make_error(ErrorKind::device, "cache.kind",
                   "hybrid supports up to {} indexed tokens a sequence on this GPU ({} bytes of "
                   "shared memory a block), found {}",
                   most, has, max_keys_)
      .hint("lower run.context, or use --device cpu");
}

double CodedLists::most_wanted(int n) const {
  return std::max(spec_.sample * n, by_error() ? double{kErrorPilot} : 0.0);
}

void CodedLists::plan(MemoryPlan& plan, const std::string& prefix) const {
  if (most_ > 0)
    plan.add(prefix + ".choosing", Memory(nullptr, *this).cutter.bytes(), bounds_.device);
}

void CodedLists::allocate(Arena& arena, const std::string& prefix) {
  if (most_ > 0) memory_ = static_cast<std::byte*>(arena.take(prefix + ".choosing"));
}

void CodedLists::run_on(const Exec& exec) {
  exec_ = exec;
  constexpr unsigned long long kNone[2] = {};
  if (most_ > 0 && by_error())
    exec.queue->copy_in(Memory(memory_, *this).error_totals, kNone, sizeof(kNone));
}

KeyUsage CodedLists::errors() const {
  if (most_ == 0 || !by_error()) return {};
  unsigned long long totals[2];
  exec_.queue->copy_out(totals, Memory(memory_, *this).error_totals, sizeof(totals));
  exec_.queue->wait();
  return {.error = static_cast<double>(totals[0]) * kErrorUnit,
          .with_error = static_cast<double>(totals[1])};
}

void CodedLists::choose(int layer, int ordinal, const Step& step, const Tensor& q,
                        const DeviceIndex& device_index, AttendPlan& plan) const {
  const Memory m(memory_, *this);
  const Geometry& g = bounds_.geometry;
  ChooseCodedParams p{.ids = m.ids,
                      .count = m.count,
                      .stride = most_,
                      .masses = by_mass() || (has_tail() && !samples()) ? m.masses : nullptr,
                      .origin = m.origin,
                      .mass_stride = m.mass_stride,
                      .clusters = codes_.clusters() == nullptr ? DeviceClusters{}
                                                               : codes_.clusters()->device(ordinal),
                      .tail_scores = samples() ? m.tail_scores : nullptr,
                      .threshold = m.threshold,
                      .exact_mass = by_error() ? m.exact_mass : nullptr,
                      .codes = codes_.device_codes(ordinal),
                      .blocks = device_index.blocks(),
                      .ends = device_index.ends(),
                      .max_blocks = device_index.max_blocks(),
                      .begin = begin_,
                      .q = q.raw(),
                      .dtype = g.dtype,
                      .scale = g.scale(layer).f32(),
                      .slot = step.arrays.slot,
                      .row_begin = step.arrays.row_begin,
                      .n_seqs = step.arrays.n_seqs,
                      .n_heads = g.n_heads,
                      .n_kv_heads = g.n_kv_heads,
                      .first_row = 0,
                      .n_rows = 0,
                      .max_keys = max_keys_,
                      .refine = spec_.refine,
                      .exact = spec_.exact,
                      .least_exact = spec_.kLeastExact,
                      .mass = by_mass() ? spec_.mass : 0,
                      .shared = heads_a_list() > 1,
                      .scratch = m.scratch};
  DrawTailParams sample{.ids = m.ids,
                        .bias = m.bias,
                        .count = m.count,
                        .stride = most_,
                        .masses = m.masses,
                        .mass_stride = m.mass_stride,
                        .scores = m.tail_scores,
                        .threshold = m.threshold,
                        .score_stride = m.scratch.key_stride,
                        .ends = device_index.ends(),
                        .begin = begin_,
                        .choosing = {.slot = step.arrays.slot,
                                     .row_begin = step.arrays.row_begin,
                                     .pos = step.arrays.pos,
                                     .n_seqs = step.arrays.n_seqs,
                                     .rows = {}},
                        .n_heads = g.n_heads,
                        .n_kv_heads = g.n_kv_heads,
                        .layer = layer,
                        .max_keys = max_keys_,
                        .sample = spec_.sample,
                        .seed = seed_,
                        .by_error = {.aim = by_error() ? spec_.error : 0,
                                     .origin = m.origin,
                                     .exact_mass = m.exact_mass,
                                     .error = m.error,
                                     .totals = m.error_totals,
                                     .q = q.raw(),
                                     .k_pool = nullptr,
                                     .page_table = step.arrays.page_table,
                                     .max_pages = step.arrays.max_pages,
                                     .d = g.head_dim,
                                     .scale = g.scale(layer).f64(),
                                     .dtype = g.dtype}};
  plan.make_lists = [p, sample, layer, samples = samples(), stream = exec_.stream()](
                        Range rows, const PagedStore& store) mutable {
    p.first_row = rows.begin;
    p.n_rows = rows.end - rows.begin;
    ops::choose_coded(p, stream);
    sample.choosing.rows = rows;
    sample.by_error.k_pool = store.k(layer).raw();
    if (samples) ops::draw_tail(sample, stream);
  };
  plan.list_rows = rows_at_once_;
  plan.lists = {.ids = m.ids,
                .bias = samples() ? m.bias : nullptr,
                .count = m.count,
                .stride = most_,
                .most = most_,
                .heads = heads_a_list()};
  if (!has_tail()) return;
  plan.tails = codes_.device_tails(ordinal, device_index);
  plan.tails.masses = m.masses;
  plan.tails.origin = m.origin;
  plan.tails.corrected = samples();
  plan.tails.mass_stride = m.mass_stride;
}

}  // namespace tandem::kv
