#pragma once
#include "kv/list_attention.h"
#include "tensor/arena.h"
#include "tensor/exec.h"

namespace tandem::kv {

/// A GPU's rows attended by the CPU: their queries come over, lists of keys in host memory are made
/// and attended on the calling thread and its helpers, and results go back, all through pinned
/// memory.
class HostAttention {
 public:
  struct Spec {
    int max_rows = 0;  // of a step
    Geometry geometry;
    Device device = {};  // the GPU
  };
  static void plan(const Spec& spec, MemoryPlan& plan);
  HostAttention(const Spec& spec, const Exec& exec);

  /// Puts the copy of a layer's queries on the queue; work that is put there after it runs while
  /// `serve` does.
  /// shapes   q [R, n_heads, head_dim] on the GPU
  void fetch(const Tensor& q);
  /// Waits for that copy alone, attends, and puts the copies of the results on the queue.
  /// call     its q, o and lse on the GPU; R rows as fetch's, of which those beyond the step's are
  ///          results of no keys
  /// errors   kind device
  void serve(ListAttention& lists, const ListAttention::Call& call, KeyUsage& usage);

 private:
  Spec spec_;
  Exec exec_;
  cuda::PinnedBuffer pinned_;
  char* q_;     // [max_rows, n_heads, head_dim]
  float* o_;    // [max_rows, n_heads, head_dim]
  float* lse_;  // [max_rows, n_heads]
  cuda::Event fetched_, sent_;
};

}  // namespace tandem::kv
