#include "speculate/draft/gpu_model_drafter.h"

#include <algorithm>

#include "ops/transfers.h"
#include "ops/verification.h"

namespace tandem::speculate {
namespace {

constexpr const char* kParents = "speculation/parents";
constexpr const char* kIndices = "speculation/draft rows";

/// How many numbers the arrays of a tree have, for each sequence.
struct Counts {
  size_t nodes, internal = 0, below_root = 0, widest = 1;

  explicit Counts(const TokenTree& tree) : nodes(static_cast<size_t>(tree.size())) {
    for (const int n : tree.n_children) internal += n > 0 ? 1 : 0;
    const std::vector<int> widths = tree.widths();
    for (size_t level = 1; level + 1 < widths.size(); ++level) {
      below_root += static_cast<size_t>(widths[level]);
      widest = std::max(widest, static_cast<size_t>(widths[level]));
    }
  }
  /// draft_row, ids; then of the levels token and row.
  size_t ints() const { return nodes + widest + below_root + internal; }
};

}  // namespace

void GpuModelDrafter::plan(const TokenTree& tree, int max_seqs, Device device, MemoryPlan& plan) {
  const Counts n(tree);
  const auto seqs = static_cast<size_t>(max_seqs);
  if (n.internal > 0) plan.add(kParents, seqs * n.internal * sizeof(ParentRow), device);
  plan.add(kIndices, seqs * n.ints() * sizeof(int32_t), device);
}

size_t GpuModelDrafter::outbox_bytes(const TokenTree& tree, int max_seqs) {
  return kv::DeviceStep::outbox_bytes(max_seqs, max_seqs * (tree.size() + DraftTexts::kMaxUnread)) +
         Outbox::aligned(static_cast<size_t>(max_seqs) * (DraftTexts::kMaxUnread + 1) *
                         sizeof(int32_t));
}

GpuModelDrafter::GpuModelDrafter(decode::Engine& draft, const TokenTree& tree, int max_seqs,
                                 Arena& arena)
    : draft_(draft),
      tree_(tree),
      max_seqs_(max_seqs),
      texts_(draft, tree_),
      exec_{draft.queue().get()} {
  const Counts n(tree);
  const auto seqs = static_cast<size_t>(max_seqs);
  draft_row_ = static_cast<int32_t*>(arena.take(kIndices));
  ids_ = draft_row_ + seqs * n.nodes;
  std::vector<int32_t> draft_row(seqs * n.nodes, -1);
  std::vector<int32_t> indices;  // of the levels
  std::vector<ParentRow> parents;
  const int32_t* next_index = ids_ + seqs * n.widest;
  const auto* next_parent =
      n.internal > 0 ? static_cast<const ParentRow*>(arena.take(kParents)) : nullptr;
  int first_logits = 0;
  for (int l = 0; l + 1 < tree.levels(); ++l) {
    const int begin = tree.level_begin[static_cast<size_t>(l)],
              end = tree.level_begin[static_cast<size_t>(l) + 1];
    Level& level = levels_.emplace_back();
    level.nodes = end - begin;
    level.first_logits = first_logits;
    std::vector<int32_t> token, row;
    for (int b = 0; b < static_cast<int>(seqs); ++b)
      for (int node = begin; node < end; ++node) {
        const auto i = static_cast<size_t>(node);
        token.push_back(b * tree.size() + node);
        if (tree.n_children[i] == 0) continue;
        row.push_back(b * level.nodes + node - begin);
        draft_row[static_cast<size_t>(b) * n.nodes + i] = first_logits++;
        parents.push_back({.seq = b,
                           .node = node,
                           .first_child = b * tree.size() + tree.first_child[i],
                           .n_children = tree.n_children[i]});
      }
    level.parents = static_cast<int>(row.size() / seqs);
    level.parent = next_parent;
    next_parent += row.size();
    if (l == 0) continue;
    level.token = next_index;
    indices.insert(indices.end(), token.begin(), token.end());
    next_index += token.size();
    level.row = next_index;
    indices.insert(indices.end(), row.begin(), row.end());
    next_index += row.size();
  }
  const auto send = [&](const void* to, const auto& from) {
    exec_.queue->copy_in(const_cast<void*>(to), from.data(), from.size() * sizeof(from[0]));
  };
  send(draft_row_, draft_row);
  if (!indices.empty()) send(ids_ + seqs * n.widest, indices);
  if (!parents.empty()) send(levels_.front().parent, parents);
  exec_.queue->wait();
}

int GpuModelDrafter::prepare(std::span<const decode::DrawSeq> seqs, DeviceTrees& trees) {
  if (texts_.is_lone_root()) return 0;
  texts_.read(seqs);
  // So many from every text, whatever was accepted, that one recording serves nearly all rounds.
  steps_ = &texts_.begin(seqs, DraftTexts::kMaxUnread, &trees.outbox());
  const int n_unread = steps_->front().n_rows;
  const Outbox::Part part =
      trees.outbox().take((static_cast<size_t>(n_unread) + seqs.size()) * sizeof(int32_t));
  unread_ = reinterpret_cast<const int32_t*>(part.device);
  root_row_ = unread_ + n_unread;
  auto* const unread = reinterpret_cast<int32_t*>(part.host);
  int32_t* const root_row = unread + n_unread;
  int read = 0;
  for (size_t b = 0; b < seqs.size(); ++b) {
    for (const int32_t id : texts_.unread(seqs[b])) unread[read++] = id;
    root_row[b] = read - 1;
  }
  const auto n = static_cast<int64_t>(seqs.size());
  for (size_t l = 0; l < levels_.size(); ++l) {
    draft_.choose_products(l == 0 ? n_unread : n * levels_[l].nodes, n * levels_[l].parents);
  }
  bytes_read_ += texts_.bytes_of_round();
  return n_unread;
}

void GpuModelDrafter::draft(int n_seqs, DeviceTrees& trees) {
  const DeviceTrees::Arrays& at = trees.on_gpu();
  for (size_t l = 0; l < levels_.size(); ++l) {
    const Level& level = levels_[l];
    if (l > 0)
      ops::load_slot_ids(
          {.last = at.tokens, .slot = level.token, .ids = ids_, .n = n_seqs * level.nodes},
          exec_.stream());
    draft_.model().forward_ids(l == 0 ? unread_ : ids_, (*steps_)[l], draft_.cache());
    const int n_rows = n_seqs * level.parents;
    const Tensor logits = draft_.logit_rows().slice(level.first_logits, n_rows);
    draft_.model().logits(logits, l == 0 ? root_row_ : level.row);
    ops::draw_children({.tokens = at.tokens,
                        .logits = logits.as<float>(),
                        .parents = level.parent,
                        .numbers = {at.seed, at.sequence, at.position},
                        .n_rows = n_rows,
                        .vocab = static_cast<int>(logits.row_size()),
                        .temperature = sampler_.rule.temperature,
                        .workspace = trees.row_workspace()},
                       exec_.stream());
  }
}

void GpuModelDrafter::keep(int n_seqs, DeviceTrees& trees) {
  if (texts_.is_lone_root()) return;
  draft_.cache().move_paths(steps_->back(), trees.paths(n_seqs, texts_.nodes_run()));
}

}  // namespace tandem::speculate
