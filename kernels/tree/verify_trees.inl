#include "kernels/tree/verify_trees.h"

#include "kernels/tree/floor_of.h"
#include "kernels/tree/node_distributions.h"

namespace tandem {
namespace {

/// The result of a node: a child to go on from, or else the last token.
struct Verdict {
  int child;  // index among the children; their number if none
  int token;  // of that child, or drawn
};

inline int index_of(int token, const int32_t* children, int n) {
  int i = 0;
  while (i < n && children[i] != token) ++i;
  return i;
}

/// The tree of one sequence, and how far it is accepted.
class Verification {
 public:
  Verification(const VerifyTreesParams& p, int b, const VerifyWorkspace& w)
      : p_(p),
        b_(b),
        w_(w),
        names_(names_of(p.numbers, b)),
        begin_(p.node_begin[b]),
        tokens_(p.tokens + begin_),
        path_(p.path + begin_) {}

  void run() {
    p_.n_rounded[b_] = 0;
    for (int i = 0; i < p_.node_begin[b_ + 1] - begin_; ++i) w_.lse[i] = NAN;
    int bonus = kInvalidToken;
    if (is_lossy(p_.accept_by))
      bonus = take_longest();
    else if (!goes_by_sequences(p_.accept_by) || p_.target.temperature == 0.0f)
      bonus = walk();
    else if (traverse(0, {1, 1}, &bonus) == Found::nonsense)
      n_ = 0;
    p_.bonus[b_] = bonus;
    p_.n_accepted[b_] = n_;
    if (p_.logprobs != nullptr) write_logprobs(bonus);
  }

 private:
  const float* row_of(const float* logits, const int32_t* row, int node) const {
    return logits + static_cast<int64_t>(row[begin_ + node]) * p_.vocab;
  }
  const float* target_of(int node) const { return row_of(p_.target_logits, p_.target_row, node); }
  int n_children(int node) const { return p_.n_children[begin_ + node]; }
  int first_child(int node) const {
    return n_children(node) > 0 ? p_.first_child[begin_ + node] : 0;
  }
  ChildKind kind(int child) const {
    return child < p_.n_drawn ? ChildKind::drawn : ChildKind::fixed;
  }

  /// Tokens before the node that follows the path so far.
  Seen seen() const {
    const int begin = p_.seen != nullptr ? p_.seen_begin[b_] : 0;
    const int n = p_.seen != nullptr ? p_.seen_begin[b_ + 1] - begin : 0;
    return {p_.seen + begin, n, tokens_, path_, n_};
  }
  Candidates kept_of(int node) const {
    const Candidates kept = keep_penalized(p_.target, target_of(node), p_.vocab, seen(), w_.select);
    if (keeps_all(p_.target, p_.vocab)) note_sum(node, kept.max, kept.total);
    return kept;
  }
  /// Of a target that keeps all.
  void note_sum(int node, float max, uint64_t total) const {
    if (p_.logprobs == nullptr || p_.target.temperature != 1.0f || total == 0) return;
    w_.lse[node] = log_sum_exp(max, total);
  }
  /// What the target draws from at a node that is reached with children; n = 0 for a row without
  /// meaning. Where one child's rejection alone takes the weights, they wait.
  Residual residual_at(int node, const Reach& reach) const {
    if (n_children(node) > 1 || !keeps_all(p_.target, p_.vocab))
      return residual_of(kept_of(node), reach, w_);
    const RowWeights row = weigh(p_.target, target_of(node), p_.vocab);
    note_sum(node, row.max, row.total);
    return residual_of_row(row, row.total > 0 ? p_.vocab : 0, reach, w_.select.weight, w_.next);
  }
  int draw_from(Residual& left, double u) const {
    make(left);
    const int i = draw(left.weight, left.n, left.total, u);
    return left.id != nullptr ? left.id[i] : i;
  }
  /// What the node's drawn children were drawn from, if any were.
  bool read_proposal(int node, Proposal* proposal) const {
    const int n = n_children(node) < p_.n_drawn ? n_children(node) : p_.n_drawn;
    if (n == 0) return true;
    const float* row = row_of(p_.draft_logits, p_.draft_row, node);
    const RowSum* known =
        p_.draft_sums != nullptr ? p_.draft_sums + p_.draft_row[begin_ + node] : nullptr;
    *proposal = proposal_of(p_.draft, row, p_.vocab, seen(), n, known, w_);
    return proposal->left > 0;
  }
  double uniform(int node, bool is_rest) const { return uniform_after(names_, node, n_, is_rest); }

  /// Node by node from the root; returns the last token.
  int walk() {
    for (int node = 0;;) {
      const Verdict v = decide(node);
      if (v.child == n_children(node) || v.token == kInvalidToken) return v.token;
      path_[n_++] = node = first_child(node) + v.child;
    }
  }

  /// The longest path of nodes that pass; returns the token after it.
  int take_longest() {
    // Depth of nodes that are reached, parents before their children; -1 of others.
    int* const depth = w_.depth;
    const int n_nodes = p_.node_begin[b_ + 1] - begin_;
    for (int i = 0; i < n_nodes; ++i) depth[i] = i == 0 ? 0 : -1;
    int end = 0;
    for (int node = 0; node < n_nodes; ++node) {
      if (depth[node] < 0) continue;
      if (depth[node] > depth[end]) end = node;
      if (n_children(node) == 0) continue;
      const FloorOf row(p_.accept_by, p_.floor, target_of(node), p_.vocab);
      for (int i = 0; i < n_children(node); ++i)
        if (row.passes(tokens_[first_child(node) + i]))
          depth[first_child(node) + i] = depth[node] + 1;
    }
    n_ = depth[end];
    // From the end back: a node's parent is the last one before it whose first child is not after
    // it.
    for (int i = n_ - 1, node = end; i >= 0; --i) {
      path_[i] = node;
      int parent = node - 1;
      while (n_children(parent) == 0 || first_child(parent) > node) --parent;
      node = parent;
    }
    const Candidates kept = kept_of(end);
    if (kept.n == 0) return kInvalidToken;
    return kept.token(draw(w_.select.weight, kept.n, kept.total, uniform(end, false)));
  }

  Verdict decide(int node) {
    const int n = n_children(node), first = first_child(node);
    const int32_t* children = tokens_ + first;
    const bool by_residual = weighs_draws(p_.accept_by) && n > 0 && p_.target.temperature > 0.0f;
    Proposal proposal{w_.proposal, 0, 0};
    if (by_residual && !read_proposal(node, &proposal)) return {0, kInvalidToken};
    const double u = uniform(node, weighs_draws(p_.accept_by) && n > 0);
    if (!by_residual) {
      const Candidates kept = kept_of(node);
      if (kept.n == 0) return {0, kInvalidToken};
      const int token = kept.token(draw(w_.select.weight, kept.n, kept.total, u));
      return {index_of(token, children, n), token};
    }
    Residual left = residual_at(node, {1, 1});
    if (left.n == 0) return {0, kInvalidToken};
    const int child = try_children(
        left, proposal, children, n, [&](int i) { return kind(i); },
        [&](int i) { return coin_of(names_, first + i); }, &p_.n_rounded[b_]);
    if (child < n) return {child, children[child]};
    return {child, draw_from(left, u)};
  }

  enum class Found { nothing, path, nonsense };

  /// Whether nothing is written down yet.
  bool waits(const Residual& left, const Proposal& proposal) const {
    return left.row.x != nullptr && proposal.weight == nullptr;
  }

  /// A node that is reached, with all below it: whether the path ends there, and with which token.
  /// Of the node with children first comes what each of them is reached with: that does not depend
  /// on what happens below its siblings, so the weights need not be kept meanwhile.
  Found traverse(int node, Reach reach, int* bonus) {
    const int n = n_children(node), first = first_child(node);
    if (n == 0 && !accepts(coin_of(names_, node), reach.weight, reach.share)) return Found::nothing;
    Proposal proposal{w_.proposal, 0, 0};
    if (!read_proposal(node, &proposal)) return Found::nonsense;
    if (n == 0) {
      const Candidates kept = kept_of(node);
      if (kept.n == 0) return Found::nonsense;
      *bonus = kept.token(draw(w_.select.weight, kept.n, kept.total, uniform(node, false)));
      return Found::path;
    }
    Residual left = residual_at(node, reach);
    if (left.n == 0) return Found::nonsense;
    // Rejections only ever lessen the chance of the node itself; before make() the total is an
    // upper bound.
    const auto may_stay = [&] {
      if (node == 0) return true;
      const double coin = coin_of(names_, node);
      if (!accepts(coin, left.total, left.unit)) return false;
      make(left);
      return accepts(coin, left.total, left.unit);
    };
    int n_tried = 0, n_entered = 0, rounded = -1;
    while (n_tried < n && rounded < 0) {
      const int i = n_tried++, child = first + i;
      const Reach of_child = reach_of(left, proposal, tokens_[child], kind(i));
      w_.reach[child] = of_child;
      // Children come after their siblings' rejections, for they write over what these read. Not so
      // leaves that fail, nor nodes below weights that wait.
      const bool is_apart =
          n_children(child) == 0 || (waits(left, proposal) && !may_leave_nothing(left, of_child));
      if (is_apart && n_entered == i) {
        ++n_entered;
        const Found found = enter(child, of_child, bonus);
        if (found != Found::nothing) return found;
      }
      if (left.total == 0 || (n_tried == n && !may_stay())) continue;
      if (reject(left, proposal, tokens_[child], kind(i)).is_nothing() && of_child.weight > 0)
        rounded = i;
    }
    const bool stays = rounded < 0 && left.total > 0 && may_stay();
    const int own = stays ? draw_from(left, uniform(node, true)) : kInvalidToken;
    for (int i = 0; i < n_tried; ++i) {
      const bool is_forced = i == rounded;
      if (i < n_entered && !is_forced) continue;
      const Reach of_child = w_.reach[first + i];
      const Found found = enter(first + i, is_forced ? Reach{1, 1} : of_child, bonus);
      if (found == Found::nothing) continue;
      const double coin = coin_of(names_, first + i);
      p_.n_rounded[b_] += is_forced && !accepts(coin, of_child.weight, of_child.share);
      return found;
    }
    *bonus = own;
    return stays ? Found::path : Found::nothing;
  }

  /// The child of the path's end; without a result the path ends there again.
  Found enter(int child, Reach reach, int* bonus) {
    if (reach.is_nothing()) return Found::nothing;
    path_[n_++] = child;
    const Found found = traverse(child, reach, bonus);
    if (found == Found::nothing) --n_;
    return found;
  }

  void write_logprobs(int bonus) const {
    for (int i = 0; i <= n_; ++i) {
      const int token = i < n_ ? tokens_[path_[i]] : bonus;
      if (token == kInvalidToken) continue;
      const int node = i > 0 ? path_[i - 1] : 0;
      const float* row = target_of(node);
      p_.logprobs[begin_ + i] =
          row[token] - (w_.lse[node] == w_.lse[node] ? w_.lse[node] : log_sum_exp(row));
    }
  }

  /// As logit_stats gives it.
  float log_sum_exp(const float* row) const {
    const float max = row_max(row, p_.vocab);
    return log_sum_exp(max, sum_weights(row, p_.vocab, max));
  }
  static float log_sum_exp(float max, uint64_t total) {
    return static_cast<float>(max + log(static_cast<double>(total) * 0x1p-40));
  }

  const VerifyTreesParams& p_;
  const int b_;
  const VerifyWorkspace& w_;
  const RoundNames names_;
  const int begin_;
  const int32_t* tokens_;
  int32_t* path_;
  int n_ = 0;  // nodes of the path
};

}  // namespace

void TANDEM_ISA_FN(verify_trees)(const VerifyTreesParams& p, Range seqs) {
  const int most = most_nodes(p.node_begin, p.n_seqs);
  const VerifyWorkspace w = lay_out_verify(p.workspace, p.vocab, most);
  for (int b = seqs.begin; b < seqs.end; ++b) Verification(p, b, w).run();
}

}  // namespace tandem
