#pragma once
// The parts of oneDNN that the products on the CPU share.
#include <oneapi/dnnl/dnnl.hpp>

#include "base/types.h"

namespace tandem::ops::onednn {

extern "C" {
int omp_get_max_threads();
void omp_set_num_threads(int n);
}

/// While it lives, oneDNN makes and runs products of the calling thread on that many OpenMP
/// threads.
class Threads {
 public:
  explicit Threads(int n) : before_(omp_get_max_threads()) { omp_set_num_threads(n); }
  ~Threads() { omp_set_num_threads(before_); }
  Threads(const Threads&) = delete;
  Threads& operator=(const Threads&) = delete;

 private:
  int before_;
};

inline dnnl::engine& engine() {
  static dnnl::engine e = [] {
    dnnl::set_primitive_cache_capacity(64);  // for layers of one shape to share primitives
    return dnnl::engine(dnnl::engine::kind::cpu, 0);
  }();
  return e;
}

inline dnnl::stream& stream() {
  thread_local dnnl::stream s(engine());
  return s;
}

inline dnnl::memory::data_type type_of(DType t) {
  return t == DType::bf16 ? dnnl::memory::data_type::bf16 : dnnl::memory::data_type::f32;
}

inline dnnl::memory::desc row_major(int64_t rows, int64_t cols, DType t) {
  return {{rows, cols}, type_of(t), dnnl::memory::format_tag::ab};
}

/// Attributes of a product whose scratchpad the caller gives, and which is added to its output.
inline dnnl::primitive_attr attributes(bool accumulate) {
  dnnl::primitive_attr attr;
  attr.set_scratchpad_mode(dnnl::scratchpad_mode::user);
  if (accumulate) {
    dnnl::post_ops ops;
    ops.append_sum(1.0f);
    attr.set_post_ops(ops);
  }
  return attr;
}

// Ragged prefills and trees ask for many row counts, and each takes some 80 KiB
// (product_code_bytes).
inline constexpr size_t kMaxPrimitives = 24;

}  // namespace tandem::ops::onednn
