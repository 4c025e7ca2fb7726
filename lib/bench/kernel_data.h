#pragma once
#include <initializer_list>
#include <memory>
#include <string>

#include "bench/kernel_cases.h"
#include "tensor/tensor.h"

// What the case files share. The families themselves:
namespace tandem::bench {

KernelCases embed_cases(const KernelShapes& s);
KernelCases norm_cases(const KernelShapes& s);
KernelCases linear_cases(const KernelShapes& s);
KernelCases ffn_cases(const KernelShapes& s);
KernelCases rope_cases(const KernelShapes& s);
KernelCases attention_cases(const KernelShapes& s);
KernelCases gate_cases(const KernelShapes& s);
KernelCases lsh_cases(const KernelShapes& s);
KernelCases code_cases(const KernelShapes& s);
KernelCases attend_cases(const KernelShapes& s);
/// Of family ffn too: what chooses its channels.
KernelCases channel_choice_cases(const KernelShapes& s);
KernelCases sample_cases(const KernelShapes& s);
KernelCases tree_cases(const KernelShapes& s);
KernelCases loading_cases(const KernelShapes& s);
KernelCases backward_cases(const KernelShapes& s);
KernelCases adapter_cases(const KernelShapes& s);

/// A tensor that owns its memory (64-byte aligned, huge pages where given), shared by copies.
class OwnedTensor {
 public:
  OwnedTensor(DType dtype, std::initializer_list<int64_t> shape);
  /// Filled with seeded uniform numbers of this deviation.
  static OwnedTensor random(DType dtype, std::initializer_list<int64_t> shape, uint32_t id,
                            float stddev = 1.0f);

  const Tensor& view() const { return view_; }
  operator const Tensor&() const { return view_; }
  void* raw() const { return view_.raw(); }
  template <class T>
  T* as() const {
    return view_.as<T>();
  }
  /// Element i as f32.
  float get(int64_t i) const;

 private:
  std::shared_ptr<void> memory_;
  Tensor view_;
};

/// Distance from 1 to the next number of the type.
double spacing(DType t);

/// Empty if every |got - want| <= relative * |want| + absolute; else names the worst element.
std::string find_mismatch(const OwnedTensor& got, const OwnedTensor& want, double relative,
                          double absolute);

/// How many copies of `bytes` together exceed the caches several times (512 MiB).
int rotating_copies(size_t bytes);

}  // namespace tandem::bench
