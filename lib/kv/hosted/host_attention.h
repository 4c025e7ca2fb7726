#pragma once
#include <functional>

#include "kernels/gather/attend_lists.h"
#include "kv/list_attention.h"
#include "ops/mailbox.h"
#include "tensor/arena.h"
#include "tensor/exec.h"

namespace tandem::kv {

/// Rows of a GPU's step that the CPU attends in the midst of it: their queries come over, and with
/// them the lists that the GPU chose, if it does; results go back. All of it passes through pinned
/// memory, and work on the queue that may be recorded waits for the host by notes (ops/mailbox.h).
class HostAttention {
 public:
  struct Spec {
    std::string name = "workspace/host attention";
    int max_rows = 0;  // of a step
    Geometry geometry;
    Device device = {};  // the GPU
    int list_keys = 0;   // most keys of a list that the GPU chose; 0: the CPU chooses
    int list_heads = 1;  // query heads of one of these
  };
  static void plan(const Spec& spec, MemoryPlan& plan);
  HostAttention(const Spec& spec, Arena& arena, const Exec& exec);

  // Work of a layer, in this order; other work may stand between:
  /// Gives the CPU the last ids of some rows' lists.
  /// share    of each list's ids
  /// result   the lists with what the GPU keeps
  QueryLists hand_over(const QueryLists& lists, Range rows, double share);
  /// Asks the CPU to attend.
  /// shapes   q [R, n_heads, head_dim] on the GPU
  void ask(const Tensor& q);
  /// Waits for what it made.
  /// shapes   o [R, n_heads, head_dim], lse [R, n_heads] on the GPU, natural log
  void await(float* o, float* lse, int64_t n_rows);

  // The host:
  /// Queries of a step's rows, and where the results go, for rows beyond the step's too; all in
  /// host memory.
  struct Request {
    const void* q;
    float *o, *lse;
  };
  /// Waits until a layer asks, and answers with what `attend` makes.
  /// errors   kind interrupted, kind device, those of `attend`: the work on the queue still waits for
  ///          an answer, until `abort`
  void serve(const Interrupted& interrupted, const std::function<void(const Request&)>& attend);
  /// Leaves notes unanswered: see Mailbox.
  void refuse() noexcept { mailbox_.refuse(); }
  void abort() noexcept { mailbox_.abort(); }

  /// The lists that were handed over.
  const KeySelector& handed() const { return handed_; }

 private:
  /// Lists in pinned memory, by row.
  class Handed final : public KeySelector {
   public:
    size_t scratch_bytes() const override { return 0; }
    bool takes_groups() const override { return heads > 1; }
    void select_keys(const KeyQuery& query, std::byte* scratch,
                     std::span<KeyList> lists) const override;
    const int32_t *ids = nullptr, *count = nullptr;
    int64_t stride = 0;
    int n_heads = 0, heads = 1;
  };

  Spec spec_;
  Exec exec_;
  ops::Mailbox mailbox_;
  cuda::PinnedBuffer pinned_;
  Request places_;
  int32_t *ids_, *count_;  // [lists, list_keys], [lists]
  int32_t* kept_;          // on the GPU: [lists]
  Handed handed_;
};

}  // namespace tandem::kv
