#pragma once
#include <vector>

#include "kernels/tree/rules_ref.h"
#include "kernels/tree/verify_trees.h"

namespace tandem {

/// For references: the tree of one sequence with its distributions as vectors of doubles over the
/// vocabulary, normalised, as rules_ref.h reads them. They are empty for a row without meaning.
class RefDistributions {
 public:
  RefDistributions(const VerifyTreesParams& p, int b);

  int n_nodes() const { return p_.node_begin[b_ + 1] - begin_; }
  int n_children(int node) const { return p_.n_children[begin_ + node]; }
  int child(int node, int i) const { return p_.first_child[begin_ + node] + i; }
  int token(int node) const { return p_.tokens[begin_ + node]; }
  bool is_nothing(double x) const { return x < 1e-12; }
  Distribution<double> target(int node) const;
  Distribution<double> proposal(int node, int i) const;

 protected:
  const float* row_of(const float* logits, const int32_t* row, int node) const {
    return logits + int64_t{row[begin_ + node]} * p_.vocab;
  }

  const VerifyTreesParams& p_;
  int b_, begin_;

 private:
  Distribution<double> weights_of(const KeepRule& rule, const float* row, int node) const;
  /// Of the draft's row of the node asked for last.
  const Distribution<double>& drafted(int node) const;

  std::vector<int> parent_;
  mutable int drafted_node_ = -1;
  mutable Distribution<double> drafted_;
};

}  // namespace tandem
