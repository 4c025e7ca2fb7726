#include <algorithm>
#include <numeric>

#include "base/check.h"
#include "speculate/round/round.h"

namespace tandem::speculate {
namespace {

/// Copies `from` to every place.
void repeat(int32_t* to, const std::vector<int>& from, int places) {
  for (int b = 0; b < places; ++b) to = std::copy(from.begin(), from.end(), to);
}

}  // namespace

void Round::begin(std::span<const decode::DrawSeq> seqs, std::span<const int> prior,
                  const decode::SamplerSpec& sampler, const TokenTree& tree, int places) {
  seqs_ = seqs;
  sampler_ = sampler;
  most_pending_ = std::ranges::any_of(prior, [](int p) { return p >= 0; }) ? tree_->levels() : 0;
  tree_ = &tree;
  places_ = places;
  outbox_ = &courier_->open();
  lay_out(prior);
  *seed_.host = static_cast<uint64_t>(sampler.seed);
}

void Round::lay_out(std::span<const int> prior) {
  const auto n = static_cast<size_t>(places_), nodes = n * static_cast<size_t>(tree_->size());
  TANDEM_CHECK(
      seqs_.size() <= n && places_ <= bounds_.max_seqs && tree_->size() <= bounds_.tree.nodes,
      "{} sequences, {} batch slots or {} nodes exceed the plan", seqs_.size(), places_,
      tree_->size());
  is_forced_ = grows_ = false;
  turn_ = n_steps_ = n_unread_ = 0;
  unread_ = {};
  masks_.clear();
  n_drafted_.assign(seqs_.size(), tree_->size() - 1);
  // First, so that results follow them.
  tokens_ = outbox_->take<int32_t>(nodes);
  if (!is_within()) {
    seed_ = outbox_->take<uint64_t>(1);
    sequence_ = outbox_->take<int32_t>(n);
  }
  position_ = outbox_->take<int32_t>(n);
  prior_ = outbox_->take<int32_t>(n);
  newest_ = outbox_->take<int32_t>(kNewestTokens * n);
  steps_ = outbox_->take<StepRows>(static_cast<size_t>(tree_->levels()));
  node_begin_ = outbox_->take<int32_t>(n + 1);
  seen_begin_ = outbox_->take<int32_t>(n + 1);
  first_child_ = outbox_->take<int32_t>(nodes);
  n_children_ = outbox_->take<int32_t>(nodes);
  row_ = outbox_->take<int32_t>(nodes);
  if (bounds_.rounds_within > 0) {
    enough_ = outbox_->take<int32_t>(n);
    most_ = outbox_->take<int32_t>(n);
  }
  take_results(is_within() ? Outbox::Part{results_, results_} : outbox_->end());
  lay_out_sequences(prior);
  send_seen();
  if (bounds_.draws_any()) lay_out_levels();
}

void Round::lay_out_sequences(std::span<const int> prior) {
  const TokenTree& tree = *tree_;
  const int places = places_;
  const std::span<const decode::DrawSeq> seqs = seqs_;
  const auto n = static_cast<size_t>(places), nodes = n * static_cast<size_t>(tree.size());
  std::fill_n(tokens_.host, nodes, 0);
  repeat(first_child_.host, tree.first_child, places);
  repeat(n_children_.host, tree.n_children, static_cast<int>(seqs.size()));
  std::fill(n_children_.host + seqs.size() * static_cast<size_t>(tree.size()),
            n_children_.host + nodes, 0);
  std::iota(row_.host, row_.host + nodes, 0);
  for (int b = 0; b <= places; ++b) node_begin_.host[b] = b * tree.size();
  for (size_t b = 0; b < n; ++b) {
    const bool is_padding = b >= seqs.size();
    if (!is_within()) sequence_.host[b] = is_padding ? 0 : seqs[b].seq;
    position_.host[b] = is_padding ? 0 : static_cast<int>(seqs[b].tokens.size());
    prior_.host[b] = is_padding || prior.empty() ? -1 : prior[b];
    if (!is_padding) host_tokens(b)[0] = seqs[b].tokens.back();
    for (size_t i = 0; i < kNewestTokens; ++i) {
      const size_t back = kNewestTokens - i;
      const bool is_there = !is_padding && back <= seqs[b].tokens.size();
      newest_.host[b * kNewestTokens + i] =
          is_there ? seqs[b].tokens[seqs[b].tokens.size() - back] : 0;
    }
  }
}

void Round::send_seen() {
  std::fill_n(seen_begin_.host, places_ + 1, 0);
  seen_ = nullptr;
  if (!sampler_.rule.needs_seen() && !bounds_.reads_text) return;
  Outbox& box = seen_courier_.open();
  // Rounds within another add to texts what they keep: there is room for it right after each,
  // which until then repeats the last token.
  const auto room = static_cast<size_t>(seen_room());
  size_t n = seqs_.size() * room;
  for (const decode::DrawSeq& s : seqs_) n += s.tokens.size();
  const Mirrored<int32_t> tokens = box.take<int32_t>(n);
  // Counted from where the buffer begins: that does not change from round to round.
  seen_ = reinterpret_cast<int32_t*>(box.device_begin());
  auto at = static_cast<int32_t>(tokens.device - seen_);
  int32_t* next = tokens.host;
  for (size_t b = 0; b <= static_cast<size_t>(places_); ++b) {
    seen_begin_.host[b] = at;
    if (b >= seqs_.size()) continue;
    next = std::copy(seqs_[b].tokens.begin(), seqs_[b].tokens.end(), next);
    next = std::fill_n(next, room, seqs_[b].tokens.back());
    at += static_cast<int32_t>(seqs_[b].tokens.size() + room);
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

void Round::follow(std::span<const kv::Step> steps) {
  TANDEM_CHECK(n_steps_ + static_cast<int>(steps.size()) <= tree_->levels(),
               "{} forward passes exceed the levels of the tree", steps.size());
  for (const kv::Step& step : steps) {
    // Each of the first sees a level, the last all nodes.
    const bool is_level = n_steps_ + 1 < tree_->levels();
    if (bounds_.beams > 0)
      masks_.push_back(
          masks_of(step, is_level ? tree_->level_begin[static_cast<size_t>(n_steps_)] : 0));
    steps_.host[n_steps_++] = kv::rows_of(step);
  }
}

void Round::follow(const Mirrored<int32_t>& unread, int n, int limit) {
  unread_ = unread;
  n_unread_ = n;
  unread_limit_ = limit;
}

void Round::shorten(size_t b, int n) {
  of_tree(n_children_.host, b)[static_cast<size_t>(n) - 1] = 0;
  n_drafted_[b] = n - 1;
}

void Round::limit(size_t b, int depth) {
  if (depth + 1 >= tree_->levels()) return;
  if (grows_) {
    most_.host[b] = std::min(most_.host[b], depth);
    enough_.host[b] = std::min(enough_.host[b], depth);
    return;
  }
  const auto level_begin = [&](int level) {
    return tree_->level_begin[static_cast<size_t>(level)];
  };
  const std::span<int32_t> n_children = of_tree(n_children_.host, b);
  std::ranges::fill(n_children.subspan(static_cast<size_t>(level_begin(depth))), 0);
  n_drafted_[b] = std::min(n_drafted_[b], level_begin(depth + 1) - 1);
}

void Round::force(size_t b, std::span<const int> path, int turn) {
  if (!is_forced_) {
    const size_t n = static_cast<size_t>(bounds_.turns) * n_forced();
    forced_ = outbox_->take<int32_t>(n);
    std::fill_n(forced_.host, n, 0);
    is_forced_ = true;
  }
  // In the order of results: paths, then how long they are.
  int32_t* const paths = forced_.host + static_cast<size_t>(turn) * n_forced();
  std::ranges::copy(path, of_tree(paths, b).begin());
  forced_counts(paths)[b] = static_cast<int32_t>(path.size());
}

}  // namespace tandem::speculate
