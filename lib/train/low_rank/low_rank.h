#pragma once
#include <span>

#include "model/forward/transformer.h"
#include "ops/linear_gradient.h"
#include "ops/low_rank.h"
#include "ops/matmul.h"
#include "tensor/exec.h"
#include "train/low_rank/low_rank_buffers.h"

namespace tandem::train {

/// Names the draws of a micro-batch's dropout.
struct MicroBatchName {
  int64_t step = 0, batch = 0;
};

/// The low-rank factors of a run, LoRA or DoRA, forward and back. Attached to the model it adds
/// (gamma D(x) A^T) B^T to the products; going back each matrix has three calls in order:
/// back_through_b, then as far as they are wanted add_input_gradient and a_gradient.
class LowRank final : public model::SideProducts {
 public:
  static void plan(const BackwardSpec& spec, const TrainedSet& set, MemoryPlan& plan) {
    LowRankBuffers::plan(spec, set, plan);
  }
  /// All must outlive this. Attaches it to the model until the end.
  LowRank(const BackwardSpec& spec, const TrainedSet& set, model::Transformer& model, Arena& arena,
          const Exec& exec = {});
  ~LowRank() override { model_.attach(nullptr); }
  LowRank(const LowRank&) = delete;
  LowRank& operator=(const LowRank&) = delete;

  /// The factors are these, until they change and are published again.
  /// shapes   values [set.size], which must outlive their use
  void publish(std::span<const float> values);
  /// Before a forward: drops elements of the inputs of A, or with `drops` false none.
  void begin(const MicroBatchName& name, bool drops);

  Tensor apart(int layer, Role of, int64_t rows) override;
  void add(int layer, Role of, const Tensor& y, const Tensor& x, const Tensor& sum) override;

  /// DoRA: keeps the outputs that back_through_b of the same matrix reads.
  void keep_outputs(int layer, Role of, const Tensor& y);
  /// Adds the gradients of B and of the magnitudes, and returns the gradient of x W^T: dy, or of
  /// DoRA its rows scaled, in dy's place unless that is the residual stream's gradient.
  /// y        DoRA of qkv: the outputs; else empty
  Tensor back_through_b(int layer, Role of, const Tensor& dy, const Tensor& y,
                        std::span<float> gradient);
  /// dx += the input gradient through the factors.
  void add_input_gradient(const Tensor& dx);
  /// Adds the gradient of A.
  void a_gradient(const Tensor& x, std::span<float> gradient);

 private:
  struct At {
    int layer = 0;
    Role of = Role::qkv;
  };
  const TrainedMatrix& matrix(const At& at) const;
  const LowRankBuffers::OfMatrix& buffers(const At& at) const;
  const ops::PackedWeights& weights(const At& at) const;
  /// Rows of the weights next to factors.
  void each_rows(const At& at, const LowRankFactors& f, const ops::VisitRows& visit) const;
  int64_t inner_size(const TrainedMatrix& m) const {
    return static_cast<int64_t>(m.factors.size()) * set_.low_rank.rank;
  }
  Tensor tensor(void* at, DType dtype, int64_t rows, int64_t cols) const {
    return {at, dtype, {rows, cols}, spec_.device};
  }
  ops::MatrixView matrix(void* at, DType dtype, int64_t rows, int64_t cols) const {
    return ops::MatrixView(tensor(at, dtype, rows, cols));
  }
  Stream stream() const { return exec_.stream(); }
  /// Factors as products read them.
  Tensor factor(int64_t offset, int64_t rows, int64_t cols) const;
  Tensor all_a(const TrainedMatrix& m, int64_t in) const;
  /// D(x), in a separate place if anything is dropped.
  Tensor dropped(const At& at, const Tensor& x);
  ops::DropoutDraw draw(const At& at) const;
  void scale_outputs(const At& at, const Tensor& out, const Tensor& in, const Tensor& sum,
                     bool with_bias);
  void update_scales(const At& at);

  BackwardSpec spec_;
  const TrainedSet& set_;
  model::Transformer& model_;
  Exec exec_;
  LowRankBuffers buffers_;
  ops::Dropout dropout_;
  std::span<const float> values_;
  MicroBatchName name_;
  bool drops_ = false;
  At back_;  // the matrix whose gradients are being taken
  int64_t n_rows_ = 0;
};

}  // namespace tandem::train
