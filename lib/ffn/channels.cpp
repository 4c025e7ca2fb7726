#include "ffn/channels.h"

#include <algorithm>
#include <numeric>

#include "base/check.h"

namespace tandem::ffn {
namespace {

constexpr const char *kUnited = "index/channels.union", *kNumbers = "index/channels.union numbers",
                     *kCounted = "index/channels.union counts";

Bounds bounds_of(const Channels::Spec& spec) {
  return {.shape = spec.shape,
          .max_seqs = spec.max_seqs,
          .device = spec.device,
          .fingerprint = spec.fingerprint};
}

std::string prefix_of(const Channels::Spec& spec, size_t i) {
  const std::string name(
      enum_names(recipe::SparseKind{})[static_cast<size_t>(spec.policies[i].kind)]);
  return "index/channels." + (i > 0 ? std::to_string(i) + "." : "") + name;
}

/// Whether steps of several sequences read unions of their lists.
bool unites(const Channels::Spec& spec) {
  return spec.max_seqs > 1 && std::ranges::any_of(spec.policies, [](const recipe::Sparse& p) {
           return needs_of(p).lists;
         });
}

}  // namespace

void Channels::plan(const Spec& spec, MemoryPlan& plan) {
  for (size_t i = 0; i < spec.policies.size(); ++i)
    make_policy(spec.policies[i], bounds_of(spec))->plan(plan, prefix_of(spec, i));
  if (!unites(spec)) return;
  const auto layers = static_cast<size_t>(spec.shape.n_layers);
  plan.add(kUnited, layers * static_cast<size_t>(spec.shape.ffn_dim) * sizeof(int32_t),
           spec.device);
  plan.add(kNumbers, layers * sizeof(int32_t), spec.device);
  plan.add(kCounted, spec.policies.size() * layers * 2 * sizeof(int64_t), spec.device);
}

Channels::Channels(const Spec& spec, Arena& arena, const Exec& exec)
    : spec_(spec), exec_(exec), versions_(static_cast<size_t>(spec.max_seqs)) {
  for (size_t i = 0; i < spec.policies.size(); ++i) {
    policies_.push_back(make_policy(spec.policies[i], bounds_of(spec)));
    policies_.back()->allocate(arena, prefix_of(spec, i));
    policies_.back()->run_on(exec);
  }
  if (!unites(spec)) return;
  united_ = static_cast<int32_t*>(arena.take(kUnited));
  n_united_ = static_cast<int32_t*>(arena.take(kNumbers));
  counted_ = static_cast<int64_t*>(arena.take(kCounted));
}

void Channels::read_weights(int layer, const LayerWeights& weights) {
  for (const auto& p : policies_) p->read_weights(layer, weights);
}

bool Channels::observes(const Policy& p, const kv::Step& step) {
  if (step.reading.channels != 0) return false;
  return step.phase == kv::Phase::prefill ? p.needs().prompts : p.needs().checks;
}

bool Channels::observes(const kv::Step& step) const {
  return std::ranges::any_of(policies_, [&](const auto& p) { return observes(*p, step); });
}

bool Channels::observes_gate_up(const kv::Step& step) const {
  return std::ranges::any_of(
      policies_, [&](const auto& p) { return observes(*p, step) && p->needs().gate_up; });
}

void Channels::observe(int layer, const kv::Step& step, const Observed& rows) {
  for (const auto& p : policies_)
    if (observes(*p, step)) p->observe(layer, step, rows);
}

ops::ChannelList Channels::select(int layer, const kv::Step& step, const Tensor& gate) {
  const Selection chosen =
      policies_[static_cast<size_t>(step.reading.channels) - 1]->select(layer, step, gate);
  if (chosen.kind == Selection::Kind::step) return chosen.list;
  ops::ChannelList list = chosen.list;  // the only slot's
  if (united_ != nullptr && !exec_.on_gpu() && step.n_seqs == 1) {
    const int64_t slot = step.slot.front();
    list.ids += slot * chosen.id_stride;
    list.n += slot * chosen.n_stride;
  } else if (united_ != nullptr) {
    if (layer == 0) unite(step, chosen);
    const Shape& s = spec_.shape;
    list = {united_ + layer * int64_t{s.ffn_dim}, n_united_ + layer,
            std::min(s.ffn_dim, step.arrays.n_seqs * chosen.list.most)};
  }
  // Lists of all layers are older than the step's first products, which wait for them.
  list.settled = layer > 0;
  return list;
}

void Channels::unite(const kv::Step& step, const Selection& of_slots) {
  TANDEM_CHECK(step.micro_batch == 0, "neuron lists are not supported for micro-batch {}",
               step.micro_batch);
  const Shape& s = spec_.shape;
  ops::unite_channels({.ids = united_,
                       .n = n_united_,
                       .counted = counted_ + (step.reading.channels - 1) * 2 * int64_t{s.n_layers},
                       .lists = of_slots.list.ids,
                       .counts = of_slots.list.n,
                       .slot_stride = of_slots.id_stride,
                       .list_stride = of_slots.list.most,
                       .count_stride = of_slots.n_stride,
                       .slot = step.arrays.slot,
                       .row_begin = step.arrays.row_begin,
                       .n_seqs = step.arrays.n_seqs,
                       .n_lists = s.n_layers,
                       .n_channels = s.ffn_dim},
                      exec_.stream());
}

const int32_t* Channels::list_of(int reading, int layer, const kv::Step& step) {
  const Selection chosen = policies_[static_cast<size_t>(reading) - 1]->select(layer, step, {});
  TANDEM_CHECK(chosen.kind == Selection::Kind::sequences,
               "policy {} does not choose neurons for each sequence", policy(reading).name());
  return chosen.list.ids + step.slot.front() * chosen.id_stride;
}

void Channels::on_prompt(int slot) {
  versions_[static_cast<size_t>(slot)] = ++newest_version_;
  for (const auto& p : policies_) p->on_prompt(slot);
}

void Channels::on_fork(int from, int to) {
  versions_[static_cast<size_t>(to)] = version(from);
  for (const auto& p : policies_) p->on_fork(from, to);
}

void Channels::on_release(int slot) {
  for (const auto& p : policies_) p->on_release(slot);
}

void Channels::on_truncate(int slot, int n) {
  for (const auto& p : policies_) p->on_truncate(slot, n);
}

ListsRead Channels::lists_read(int reading) const {
  const Policy& p = policy(reading);
  const auto layers = static_cast<size_t>(spec_.shape.n_layers);
  std::vector<int64_t> counts(2 * layers);
  const int64_t* from = p.counted();
  if (counted_ != nullptr && p.needs().lists)
    from = counted_ + static_cast<size_t>(reading - 1) * counts.size();
  if (from == nullptr) return {};
  if (exec_.on_gpu()) {
    exec_.queue->copy_out(counts.data(), from, counts.size() * sizeof(int64_t));
    exec_.queue->wait();
  } else {
    std::copy_n(from, counts.size(), counts.begin());
  }
  ListsRead read;
  for (size_t l = 0; l < layers; ++l) {
    read.lists += counts[2 * l];
    read.channels += counts[2 * l + 1];
  }
  return read;
}

double Channels::share_read(int reading, const ListsRead& before) const {
  const double all = spec_.shape.ffn_dim;
  const ListsRead now = lists_read(reading);
  if (now.lists == before.lists) return policy(reading).expected_channels() / all;
  return static_cast<double>(now.channels - before.channels) /
         (static_cast<double>(now.lists - before.lists) * all);
}

}  // namespace tandem::ffn
