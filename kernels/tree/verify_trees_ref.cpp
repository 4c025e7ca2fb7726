// Straightforward and independent of the bodies: distributions as vectors of doubles over the
// vocabulary, normalised after every step.
#include <algorithm>
#include <cmath>
#include <vector>

#include "kernels/tree/ref_distributions.h"
#include "kernels/tree/verify_trees.h"
#include "kernels/tree/verify_workspace.h"

namespace tandem {
namespace {

using Probabilities = Distribution<double>;  // by token; empty for a row without meaning

int draw_from(const Probabilities& ps, double uniform) {
  double mass = 0;
  int last = 0;
  for (size_t id = 0; id < ps.size(); ++id) {
    if (ps[id] == 0) continue;
    last = static_cast<int>(id);
    if ((mass += ps[id]) > uniform) break;
  }
  return last;
}

/// The tree of one sequence, as rules_ref.h reads it.
class RefTree : public RefDistributions {
 public:
  RefTree(const VerifyTreesParams& p, int b)
      : RefDistributions(p, b), names_(names_of(p.numbers, b)) {}

  void run() {
    Ending<double> end = is_lossy(p_.accept_by)                                          ? longest()
                         : p_.accept_by == AcceptBy::match || p_.target.temperature == 0 ? match()
                         : p_.accept_by == AcceptBy::sequoia ? verify_by_nodes<double>(*this)
                                                             : verify_by_sequences<double>(*this);
    const int last = end.path.empty() ? 0 : end.path.back(), n = static_cast<int>(end.path.size());
    const bool is_rest = weighs_draws(p_.accept_by) && n_children(last) > 0;
    const int bonus = end.residual.empty()
                          ? kInvalidToken
                          : draw_from(end.residual, uniform_after(names_, last, n, is_rest));
    std::copy(end.path.begin(), end.path.end(), p_.path + begin_);
    p_.n_accepted[b_] = n;
    p_.bonus[b_] = bonus;
    p_.n_rounded[b_] = end.n_rounded;
    if (p_.logprobs == nullptr) return;
    for (int i = 0; i <= n; ++i) {
      const int after = i > 0 ? end.path[static_cast<size_t>(i) - 1] : 0;
      const int id = i < n ? token(end.path[static_cast<size_t>(i)]) : bonus;
      if (id == kInvalidToken) continue;
      const float* row = row_of(p_.target_logits, p_.target_row, after);
      p_.logprobs[begin_ + i] = static_cast<float>(row[id] - log_sum_exp(row));
    }
  }

  bool decide(int node, double probability) const { return coin_of(names_, node) < probability; }

 private:
  double log_sum_exp(const float* row) const {
    const double max = *std::max_element(row, row + p_.vocab);
    double sum = 0;
    for (int i = 0; i < p_.vocab; ++i) sum += std::exp(row[i] - max);
    return max + std::log(sum);
  }

  /// Every token is drawn from the target; the path goes on while a child has it.
  Ending<double> match() const {
    Ending<double> end;
    for (int node = 0;;) {
      end.residual = target(node);
      if (end.residual.empty()) return end;
      const bool is_rest = weighs_draws(p_.accept_by) && n_children(node) > 0;
      const int id = draw_from(
          end.residual, uniform_after(names_, node, static_cast<int>(end.path.size()), is_rest));
      int next = -1;
      for (int i = n_children(node) - 1; i >= 0; --i)
        if (token(child(node, i)) == id) next = child(node, i);
      if (next < 0) return end;
      end.path.push_back(node = next);
    }
  }

  /// The longest of all paths whose nodes pass, each tried from the root.
  Ending<double> longest() const {
    Ending<double> end;
    std::vector<std::vector<int>> paths{{}};
    for (size_t i = 0; i < paths.size(); ++i) {
      const std::vector<int> path = paths[i];  // paths grows
      if (path.size() > end.path.size()) end.path = path;
      const int node = path.empty() ? 0 : path.back();
      for (int c = 0; c < n_children(node); ++c) {
        if (!passes(node, token(child(node, c)))) continue;
        paths.push_back(path);
        paths.back().push_back(child(node, c));
      }
    }
    end.residual = target(end.path.empty() ? 0 : end.path.back());
    return end;
  }

  bool passes(int node, int id) const {
    const float* row = row_of(p_.target_logits, p_.target_row, node);
    const double t = p_.floor.temperature, max = *std::max_element(row, row + p_.vocab);
    double sum = 0, entropy = 0;
    for (int i = 0; i < p_.vocab; ++i) {
      if (std::isnan(row[i]) || row[i] == INFINITY) return false;
      sum += std::exp((row[i] - max) / t);
    }
    for (int i = 0; i < p_.vocab; ++i)
      if (const double q = std::exp((row[i] - max) / t) / sum; q > 0) entropy -= q * std::log(q);
    double floor = p_.floor.probability;
    if (p_.accept_by == AcceptBy::typical)
      floor = std::min(floor, p_.floor.delta * std::exp(-entropy));
    const bool is_argmax = std::max_element(row, row + p_.vocab) == row + id;
    return std::exp((row[id] - max) / t) / sum >= floor ||
           (p_.accept_by == AcceptBy::floor_or_argmax && is_argmax);
  }

  RoundNames names_;
};

}  // namespace

size_t verify_workspace_bytes(int vocab, int nodes) {
  return lay_out_verify(nullptr, vocab, nodes).bytes;
}

void verify_trees_ref(const VerifyTreesParams& p, Range seqs) {
  for (int b = seqs.begin; b < seqs.end; ++b) RefTree(p, b).run();
}

}  // namespace tandem
