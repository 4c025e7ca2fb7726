#pragma once
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>

#include "tensor/arena.h"
#include "tensor/tensor.h"

namespace tandem::ops {

/// A dense layer's weights in oneDNN's packed layout, its bias, and the primitives made for the row
/// counts seen so far. One layout serves every row count (measured: choosing it for 512 rows costs
/// nothing at 1 row, and repacking would hold the weights twice).
class PackedWeights {
 public:
  struct Spec {
    std::string name;  // buffer name in the memory plan, "weights/..."
    int64_t out = 0;   // N
    int64_t in = 0;    // K
    bool bias = false;
    DType dtype = DType::bf16;  // of weights and inputs; f32 or bf16
  };
  /// Writes rows [begin, end) of the [out, in] matrix, in the spec's dtype, to `staging`.
  using RowSource = std::function<void(int64_t begin, int64_t end, void* staging)>;

  PackedWeights();
  ~PackedWeights();
  PackedWeights(PackedWeights&&) noexcept;
  PackedWeights& operator=(PackedWeights&&) noexcept;

  static void plan(const Spec& spec, MemoryPlan& plan);
  /// Bytes of staging that `load` needs.
  static size_t staging_bytes(const Spec& spec);
  /// Takes the planned memory and fills it a few rows at a time; `bias` [out] f32, or empty. Layouts
  /// depend on the number of threads: it must be that of the plan.
  void load(const Spec& spec, Arena& arena, const RowSource& rows, std::span<const float> bias,
            void* staging);

  int64_t out() const;
  int64_t in() const;
  DType dtype() const;
  /// Bytes read when a forward touches the whole matrix once.
  size_t bytes() const;
  /// Scratch that `linear` needs for at most `max_rows` rows.
  static size_t workspace_bytes(const Spec& spec, int64_t max_rows);

  struct State;
  State& state() const { return *state_; }

 private:
  std::unique_ptr<State> state_;
};

enum class Accumulate : bool { no, yes };

/// y = x W^T + b, or y += x W^T + b.
/// shapes   x [rows, in] in the weights' dtype; y [rows, out] bf16 or f32, f32 if accumulating
/// numerics f32 accumulation. With f32 weights each row's result is bit-identical whatever the
///          number of rows (oneDNN's AVX-512 kernels have that property; elsewhere rows go through in
///          fixed blocks of 16)
/// cost     reads the packed weights once per 2048 rows or so
/// errors   none (shapes are checked by TANDEM_CHECK); `workspace` per workspace_bytes
void linear(const Tensor& y, const Tensor& x, const PackedWeights& w, Accumulate accumulate,
            std::span<std::byte> workspace);

/// Runs one small product, so that the library's code and threads are in memory, where a plan made
/// afterwards counts them with the program. Only the first call for a dtype and a number of threads
/// does, and returns true.
bool warm_up_linear(DType dtype);

/// dtype that weights get on this CPU for a wanted compute dtype: bf16 needs AVX512-BF16, since
/// oneDNN refuses or unpacks bf16 elsewhere.
DType weight_dtype(DType compute);

}  // namespace tandem::ops
