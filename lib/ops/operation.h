#pragma once
#include <algorithm>
#include <type_traits>

#include "base/check.h"
#include "base/parallel.h"
#include "kernels/cpu_table.h"
#include "kernels/cuda_table.h"
#include "tensor/cuda.h"
#include "tensor/tensor.h"

namespace tandem::ops {

inline int as_int(int64_t n) { return static_cast<int>(n); }
inline int vocab_of(const Tensor& logits) { return as_int(logits.row_size()); }

/// Tensors in a GPU's memory need its stream, others none.
inline void check_stream(const char* name, const Tensor& t, Stream stream) {
  TANDEM_CHECK((t.device().kind == Device::Kind::cuda) == (stream.handle != nullptr),
               "{}: the tensor is on {}, the stream is not", name, t.device().name());
}

/// The name of an operation and its bodies on GPUs, for launch.
#define TANDEM_KERNEL(op) #op, &CudaTable::op

/// Puts an operation of a GPU on its stream.
template <class Params>
void launch(const char* name, cuda::Bodies<void(Params, Stream)> CudaTable::*bodies,
            std::type_identity_t<Params> params, Stream stream) {
  (cuda_table().*bodies)(params, stream);
  cuda::launched(name, stream);
}

/// An operation on n independent items that has a body for each device.
template <class Params>
struct Operation {
  const char* name;
  void (*CpuTable::*cpu)(const Params&, Range);
  cuda::Bodies<void(const Params&, Stream)> CudaTable::*gpu;

  /// Puts it on the stream, or does it at once on all threads of the CPU where that is null.
  /// item_bytes   that one item moves, roughly
  void run(const Params& p, int n_items, int64_t item_bytes, Stream stream) const {
    if (stream.handle == nullptr) return run_on_cpu(p, n_items, item_bytes);
    launch(name, gpu, p, stream);
  }

 private:
  void run_on_cpu(const Params& p, int n_items, int64_t item_bytes) const {
    // A thread's share should outweigh waking it (a few microseconds).
    constexpr int64_t kGrainBytes = 65536;
    const auto body = cpu_table().*cpu;
    const int grain = static_cast<int>(1 + kGrainBytes / std::max<int64_t>(1, item_bytes));
    parallel_ranges(n_items, grain, [&](int begin, int end) { body(p, Range{begin, end}); });
  }
};

/// For compilers that do not deduce an aggregate's parameters.
template <class Params>
Operation(const char*, void (*CpuTable::*)(const Params&, Range),
          cuda::Bodies<void(const Params&, Stream)> CudaTable::*) -> Operation<Params>;

/// The operation of this name in both tables.
#define TANDEM_OPERATION(op) \
  Operation { #op, &CpuTable::op, &CudaTable::op }

}  // namespace tandem::ops
