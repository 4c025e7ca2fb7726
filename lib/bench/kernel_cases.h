#pragma once
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "bench/harness.h"
#include "bench/roofline.h"
#include "recipe/sections.h"

namespace tandem::bench {

/// Section `bench` of kernel-bench: what to measure, at which shapes. Defaults: Llama 3.2 1B.
struct KernelShapes {
  std::vector<std::string> families, cases;  // empty = all
  recipe::Compute compute = recipe::Compute::bf16;
  std::vector<recipe::TokenCount> rows = {{1}, {512}};
  recipe::TokenCount context{4096};
  int dim = 2048, ffn_dim = 8192, n_heads = 32, n_kv_heads = 8, head_dim = 64, vocab = 128256;
  double keep = 0.5;
  int slices = 64, rank = 32;
  recipe::Duration min_time{0.5};

  template <class V>
  void fields(V& v) {
    using recipe::at_least;
    constexpr double kMost = 1 << 20;  // products of two stay far inside int64
    v("families", families, "kernel families to run, empty = all");
    v("cases", cases, "names of the cases to run, such as decode, empty = all");
    v("compute", compute, "data type of activations and weights");
    v("rows", rows, at_least(1).up_to(1 << 16).unit("tokens"),
      "numbers of rows in a step, one case each");
    v("context", context, at_least(1).up_to(kMost).unit("tokens"), "context length for attention");
    v("dim", dim, at_least(1).up_to(kMost), "hidden size of the model");
    v("ffn_dim", ffn_dim, at_least(1).up_to(kMost), "intermediate size of the FFN");
    v("keep", keep, at_least(0).up_to(1),
      "share of FFN neurons that a sparse FFN computes, for family ffn");
    v("slices", slices, at_least(1).up_to(kMost),
      "rows or columns of a [dim, dim] matrix that an adapter changes, for family adapter");
    v("rank", rank, at_least(1).up_to(4096), "rank of a low-rank adapter, for family adapter");
    v("n_heads", n_heads, at_least(1).up_to(1024),
      "number of query heads, a multiple of n_kv_heads");
    v("n_kv_heads", n_kv_heads, at_least(1).up_to(1024), "number of KV heads");
    v("head_dim", head_dim, at_least(2).up_to(512), "dimension of a head, an even number");
    v("vocab", vocab, at_least(1).up_to(1 << 22), "vocabulary size");
    v("min_time", min_time, at_least(0),
      "minimum measured time of a case, which also takes at least 10 runs");
  }
  void check(recipe::Problems& p) const;

  /// Type of activations and weights.
  DType act() const;
};

/// A case with its memory: ready to run.
struct PreparedCase {
  Body run;
  /// After one run: compares with the reference; empty, or what differs.
  std::function<std::string()> mismatch;
  /// The same work done by the baseline (KernelCase::baseline_name); may be empty.
  Body baseline = {};
};

/// One kernel at one shape. Describing it costs nothing; prepare() takes the memory.
struct KernelCase {
  std::string family, name, shape;
  DType dtype = DType::f32;
  Work work;
  size_t memory_bytes = 0;
  /// True if runs take turns on copies that together exceed the caches; otherwise the L2 caches
  /// are flushed before each run.
  bool rotates = false;
  std::string baseline_name = "oneDNN alone";
  std::function<PreparedCase()> prepare;
};

using KernelCases = std::vector<KernelCase>;

/// Names of all families, in the order of a forward pass.
std::vector<std::string_view> kernel_families();

/// The cases of one family.
/// errors   kind recipe for an unknown family, naming those there are
KernelCases kernel_cases(std::string_view family, const KernelShapes& shapes);

}  // namespace tandem::bench
