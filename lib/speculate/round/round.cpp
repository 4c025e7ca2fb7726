#include "speculate/round/round.h"

#include <algorithm>
#include <numeric>

#include "base/check.h"
#include "kernels/sample/row_split.h"
#include "kernels/tree/traverse_trees.h"
#include "ops/transfers.h"
#include "ops/verification.h"

namespace tandem::speculate {
namespace {

constexpr const char* kIds = "speculation/ids";
constexpr const char* kLogits = "speculation/draft logits";
constexpr const char* kRows = "speculation/rows";

template <class T>
size_t room(size_t n) {
  return Outbox::aligned(n * sizeof(T));
}

bool draws(const Round::Bounds& b) { return b.draws && b.tree.parents > 0; }

size_t n_nodes(const Round::Bounds& b) {
  return static_cast<size_t>(b.max_seqs) * static_cast<size_t>(b.tree.nodes);
}
size_t n_parents(const Round::Bounds& b) {
  return static_cast<size_t>(b.max_seqs) * static_cast<size_t>(b.tree.parents);
}
size_t n_ids(const Round::Bounds& b) {
  return static_cast<size_t>(b.max_seqs) * static_cast<size_t>(b.tree.widest);
}

size_t parcel_bytes(const Round::Bounds& b) {
  const auto seqs = static_cast<size_t>(b.max_seqs), levels = static_cast<size_t>(b.tree.levels);
  size_t bytes = b.outbox_bytes + room<uint64_t>(1) + 3 * room<int32_t>(seqs) +
                 2 * room<int32_t>(seqs + 1) + 5 * room<int32_t>(n_nodes(b));
  if (draws(b))  // arrays of levels end in gaps
    bytes += 3 * room<int32_t>(n_nodes(b)) + room<int32_t>(n_parents(b)) +
             room<ParentRow>(n_parents(b)) + 2 * levels * Outbox::kAlignment;
  return bytes;
}

size_t result_bytes(const Round::Bounds& b) {
  const auto seqs = static_cast<size_t>(b.max_seqs);
  return room<int32_t>(n_nodes(b)) + room<float>(n_nodes(b)) + 3 * room<int32_t>(seqs) +
         room<uint64_t>(Round::n_moments);
}

Courier::Spec courier_spec(const Round::Bounds& b) {
  return {.name = "speculation/round", .in_bytes = parcel_bytes(b), .out_bytes = result_bytes(b)};
}
Courier::Spec seen_spec(const Round::Bounds& b) {
  return {.name = "speculation/seen",
          .in_bytes =
              room<int32_t>(static_cast<size_t>(b.max_seqs) * static_cast<size_t>(b.max_tokens))};
}

/// Of the kernels that work on rows of logits on a GPU: all parents of a level draw children, the
/// sequences are verified.
size_t row_bytes(const Round::Bounds& b, Device device) {
  if (device.kind != Device::Kind::cuda) return 0;
  return std::max(cuda::row_memory_bytes(b.gpu, b.vocab, b.max_seqs * b.tree.widest, 1),
                  cuda::verify_memory_bytes(b.gpu, b.draws ? AcceptBy::traversal : AcceptBy::match,
                                            b.vocab, b.max_seqs, static_cast<int>(n_nodes(b))));
}

/// Copies `from` to every place.
void repeat(int32_t* to, const std::vector<int>& from, int places) {
  for (int b = 0; b < places; ++b) to = std::copy(from.begin(), from.end(), to);
}

}  // namespace

void Round::plan(const Bounds& b, Device device, MemoryPlan& plan) {
  Courier::plan(courier_spec(b), device, plan);
  Courier::plan(seen_spec(b), device, plan);
  if (draws(b)) {
    plan.add(kIds, n_ids(b) * sizeof(int32_t), device);
    plan.add(kLogits, n_parents(b) * static_cast<size_t>(b.vocab) * sizeof(float), device);
  }
  if (const size_t bytes = row_bytes(b, device); bytes > 0) plan.add(kRows, bytes, device);
}

Round::Round(const Bounds& b, Arena& arena, const Exec& exec)
    : bounds_(b),
      exec_(exec),
      courier_(courier_spec(b), arena, exec),
      seen_courier_(seen_spec(b), arena, exec) {
  if (draws(b)) {
    ids_ = static_cast<int32_t*>(arena.take(kIds));
    draft_logits_ = {arena.take(kLogits),
                     DType::f32,
                     {static_cast<int64_t>(n_parents(b)), b.vocab},
                     exec.device()};
    if (!exec.on_gpu()) draft_sums_.resize(n_parents(b));
  }
  if (row_bytes(b, exec.device()) > 0) rows_ = arena.take(kRows);
}

void Round::begin(std::span<const decode::DrawSeq> seqs, const decode::SamplerSpec& sampler,
                  const TokenTree& tree, int places) {
  const auto n = static_cast<size_t>(places), nodes = n * static_cast<size_t>(tree.size());
  TANDEM_CHECK(seqs.size() <= n && places <= bounds_.max_seqs && tree.size() <= bounds_.tree.nodes,
               "{} sequences, {} places, {} nodes", seqs.size(), places, tree.size());
  seqs_ = seqs;
  sampler_ = sampler;
  tree_ = &tree;
  places_ = places;
  is_forced_ = false;
  n_drafted_.assign(seqs.size(), tree.size() - 1);
  outbox_ = &courier_.open();
  // First, so that results follow them.
  tokens_ = outbox_->take<int32_t>(nodes);
  seed_ = outbox_->take<uint64_t>(1);
  sequence_ = outbox_->take<int32_t>(n);
  position_ = outbox_->take<int32_t>(n);
  node_begin_ = outbox_->take<int32_t>(n + 1);
  seen_begin_ = outbox_->take<int32_t>(n + 1);
  first_child_ = outbox_->take<int32_t>(nodes);
  n_children_ = outbox_->take<int32_t>(nodes);
  row_ = outbox_->take<int32_t>(nodes);
  take_results();
  *seed_.host = static_cast<uint64_t>(sampler.seed);
  std::fill_n(tokens_.host, nodes, 0);
  repeat(first_child_.host, tree.first_child, places);
  repeat(n_children_.host, tree.n_children, static_cast<int>(seqs.size()));
  std::fill(n_children_.host + seqs.size() * static_cast<size_t>(tree.size()),
            n_children_.host + nodes, 0);
  std::iota(row_.host, row_.host + nodes, 0);
  for (int b = 0; b <= places; ++b) node_begin_.host[b] = b * tree.size();
  for (size_t b = 0; b < n; ++b) {
    const bool is_padding = b >= seqs.size();
    sequence_.host[b] = is_padding ? 0 : seqs[b].seq;
    position_.host[b] = is_padding ? 0 : seqs[b].position;
    if (!is_padding) host_tokens(b)[0] = seqs[b].tokens.back();
  }
  send_seen();
  if (draws(bounds_)) lay_out_levels();
}

void Round::take_results() {
  Outbox::Part at = outbox_->end();
  const std::byte* const begin = at.host;
  const auto take = [&]<class T>(Mirrored<T>& array, size_t n) {
    array = {reinterpret_cast<T*>(at.host), reinterpret_cast<T*>(at.device)};
    at = {at.host + room<T>(n), at.device + room<T>(n)};
  };
  const auto n = static_cast<size_t>(places_), nodes = n * static_cast<size_t>(tree_->size());
  take(path_, nodes);
  take(n_accepted_, n);
  take(bonus_, n);
  take(logprobs_, nodes);
  take(n_rounded_, n);
  take(clock_, n_moments);
  fetched_bytes_ = room<int32_t>(nodes) + static_cast<size_t>(at.host - begin);
}

void Round::send_seen() {
  std::fill_n(seen_begin_.host, places_ + 1, 0);
  seen_ = nullptr;
  if (!sampler_.rule.needs_seen()) return;
  Outbox& box = seen_courier_.open();
  size_t n = 0;
  for (const decode::DrawSeq& s : seqs_) n += s.tokens.size();
  const Mirrored<int32_t> tokens = box.take<int32_t>(n);
  // Counted from where the buffer begins: that does not change from round to round.
  seen_ = reinterpret_cast<const int32_t*>(box.device_begin());
  auto at = static_cast<int32_t>(tokens.device - seen_);
  int32_t* next = tokens.host;
  for (size_t b = 0; b <= static_cast<size_t>(places_); ++b) {
    seen_begin_.host[b] = at;
    if (b >= seqs_.size()) continue;
    next = std::copy(seqs_[b].tokens.begin(), seqs_[b].tokens.end(), next);
    at += static_cast<int32_t>(seqs_[b].tokens.size());
  }
  seen_courier_.send();
}

void Round::lay_out_levels() {
  const int n = tree_->size();
  draft_row_ = outbox_->take<int32_t>(static_cast<size_t>(places_ * n));
  parent_ = outbox_->take<int32_t>(static_cast<size_t>(places_ * n));
  std::fill_n(draft_row_.host, places_ * n, -1);
  repeat(parent_.host, tree_->parent, places_);
  levels_.assign(static_cast<size_t>(tree_->levels()) - 1, {});
  int next_logits = 0;
  for (size_t l = 0; l < levels_.size(); ++l) {
    const int begin = tree_->level_begin[l], end = tree_->level_begin[l + 1];
    const auto has_children = [&](int node) {
      return tree_->n_children[static_cast<size_t>(node)] > 0;
    };
    int parents = 0;
    for (int node = begin; node < end; ++node) parents += has_children(node) ? 1 : 0;
    Level& level = levels_[l];
    level = {.n_nodes = places_ * (end - begin),
             .n_parents = places_ * parents,
             .first_logits = next_logits};
    const auto token = outbox_->take<int32_t>(static_cast<size_t>(level.n_nodes));
    const auto row = outbox_->take<int32_t>(static_cast<size_t>(level.n_parents));
    const auto parent = outbox_->take<ParentRow>(static_cast<size_t>(level.n_parents));
    level.token = token.device;
    level.row = row.device;
    level.parent = parent.device;
    int t = 0, p = 0;
    for (int b = 0; b < places_; ++b)
      for (int node = begin; node < end; ++node, ++t) {
        token.host[t] = b * n + node;
        if (!has_children(node)) continue;
        const auto i = static_cast<size_t>(node);
        draft_row_.host[b * n + node] = next_logits++;
        row.host[p] = t;
        parent.host[p++] = {.seq = b,
                            .node = node,
                            .first_child = b * n + tree_->first_child[i],
                            .n_children = tree_->n_children[i]};
      }
  }
}

void Round::shorten(size_t b, int n) {
  of_tree(n_children_.host, b)[static_cast<size_t>(n) - 1] = 0;
  n_drafted_[b] = n - 1;
}

void Round::force(size_t b, std::span<const int> path) {
  const auto n = static_cast<size_t>(places_);
  if (!is_forced_) {
    // In the order of results, without a gap.
    forced_n_ = outbox_->take<int32_t>(n);
    forced_ = outbox_->take<int32_t>(n * static_cast<size_t>(tree_->size()));
    std::fill_n(forced_n_.host, n, 0);
    is_forced_ = true;
  }
  forced_n_.host[b] = static_cast<int32_t>(path.size());
  std::ranges::copy(path, of_tree(forced_.host, b).begin());
}

void Round::send() {
  const Outbox::Part all = outbox_->all();
  if (exec_.on_gpu())
    ops::host_copy({.to = all.device, .from = all.host, .bytes = outbox_->taken()}, exec_.stream());
}

void Round::mark(Moment moment) { ops::read_clock(clock_.device + moment, exec_.stream()); }

const int32_t* Round::level_ids(int level, int limit) {
  const Level& l = levels_[static_cast<size_t>(level)];
  ops::load_slot_ids(
      {.last = tokens_.device, .slot = l.token, .ids = ids_, .n = l.n_nodes, .limit = limit},
      exec_.stream());
  return ids_;
}

Tensor Round::level_logits(int level) const {
  const Level& l = levels_[static_cast<size_t>(level)];
  return draft_logits_.slice(l.first_logits, l.n_parents);
}

void Round::draw_children(int level) {
  const Level& l = levels_[static_cast<size_t>(level)];
  ops::draw_children({.tokens = tokens_.device,
                      .logits = level_logits(level).as<float>(),
                      .parents = l.parent,
                      .numbers = numbers(),
                      .n_rows = l.n_parents,
                      .vocab = bounds_.vocab,
                      .rule = sampler_.rule.kept(),
                      .seen = seen_,
                      .seen_begin = seen_begin_.device,
                      .parent = parent_.device,
                      .node_begin = node_begin_.device,
                      .workspace = rows_,
                      .sums = draft_sums_.empty() ? nullptr : draft_sums_.data() + l.first_logits},
                     exec_.stream());
  if (exec_.on_gpu()) return;  // verification finds rows without meaning
  for (int p = 0; p < l.n_parents; ++p)
    ops::check_valid(
        {tokens_.host + l.parent[p].first_child, static_cast<size_t>(l.parent[p].n_children)});
}

VerifyTreesParams Round::verification(const Tensor& logits, AcceptBy rule) const {
  const bool by_residual = rule != AcceptBy::match;
  return {.path = path_.device,
          .n_accepted = n_accepted_.device,
          .bonus = bonus_.device,
          .logprobs = logprobs_.device,
          .n_rounded = n_rounded_.device,
          .node_begin = node_begin_.device,
          .tokens = tokens_.device,
          .first_child = first_child_.device,
          .n_children = n_children_.device,
          .target_row = row_.device,
          .draft_row = by_residual ? draft_row_.device : nullptr,
          .target_logits = logits.as<float>(),
          .draft_logits = by_residual ? draft_logits_.as<float>() : nullptr,
          .seen = seen_,
          .seen_begin = seen_begin_.device,
          .numbers = numbers(),
          .n_seqs = places_,
          .vocab = bounds_.vocab,
          .target = sampler_.rule.kept(),
          .draft = sampler_.rule.kept(),
          .accept_by = rule,
          .workspace = rows_,
          .draft_sums = by_residual && !draft_sums_.empty() ? draft_sums_.data() : nullptr};
}

void Round::verify(const Tensor& logits, AcceptBy rule) {
  ops::verify_trees(verification(logits, rule), exec_.stream());
  if (!is_forced_) return;
  const auto n = static_cast<size_t>(places_);
  ops::host_copy(
      {.to = path_.device,
       .from = forced_.device,
       .bytes = room<int32_t>(n * static_cast<size_t>(tree_->size())) + room<int32_t>(n)},
      exec_.stream());
}

kv::PagedStore::AcceptedPaths Round::paths(int n_held) const {
  return {.path = path_.device,
          .n_accepted = n_accepted_.device,
          .position = position_.device,
          .n_seqs = places_,
          .n_nodes = tree_->size(),
          .n_nodes_held = n_held,
          .max_depth = tree_->levels() - 1};
}

void Round::fetch() {
  if (exec_.on_gpu())
    ops::host_copy({.to = tokens_.host, .from = tokens_.device, .bytes = fetched_bytes_},
                   exec_.stream());
}

std::span<const int32_t> Round::path(size_t b) const {
  return of_tree<const int32_t>(path_.host, b).first(static_cast<size_t>(n_accepted_.host[b]));
}

std::vector<decode::Drawn> Round::drawn(size_t b) const {
  ops::check_valid({bonus_.host + b, 1});
  const auto tokens = of_tree<const int32_t>(tokens_.host, b);
  const auto logprobs = of_tree<const float>(logprobs_.host, b);
  std::vector<decode::Drawn> drawn;
  for (const int32_t node : path(b))
    drawn.push_back({.id = tokens[static_cast<size_t>(node)],
                     .logprob = is_forced_ ? 0.0f : logprobs[drawn.size()],
                     .top = {}});
  drawn.push_back(
      {.id = bonus_.host[b], .logprob = is_forced_ ? 0.0f : logprobs[drawn.size()], .top = {}});
  return drawn;
}

double Round::seconds(Moment from, Moment to) const {
  return 1e-9 * static_cast<double>(clock_.host[to] - clock_.host[from]);
}

}  // namespace tandem::speculate
