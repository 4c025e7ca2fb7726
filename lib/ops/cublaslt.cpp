#include "ops/cublaslt.h"

#include <cublasLt.h>
#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <map>
#include <mutex>

#include "base/error.h"
#include "tensor/cuda.h"

namespace tandem::ops::cublaslt {
namespace {

void check(cublasStatus_t status, const char* what) {
  if (status == CUBLAS_STATUS_SUCCESS) [[likely]]
    return;
  const bool memory = status == CUBLAS_STATUS_ALLOC_FAILED;
  throw Error::make(memory ? ErrorKind::memory : ErrorKind::device, "cuBLASLt", "{}: {}", what,
                    cublasLtGetStatusString(status));
}

/// One a GPU for the whole process: they hold no workspace and may be used by several threads.
cublasLtHandle_t handle(int device) {
  static std::mutex mutex;
  static std::map<int, cublasLtHandle_t> handles;
  const std::scoped_lock lock(mutex);
  if (const auto it = handles.find(device); it != handles.end()) return it->second;
  cuda::use_device(device);
  cublasLtHandle_t h = nullptr;
  check(cublasLtCreate(&h), "cannot start");
  return handles[device] = h;
}

cudaDataType type_of(DType t) { return t == DType::bf16 ? CUDA_R_16BF : CUDA_R_32F; }

/// The alignment of all rows of `n` elements in a buffer that is aligned to 16 bytes at least.
uint32_t alignment(int64_t n, DType t) {
  constexpr int64_t kMost = 16;
  const int64_t bytes = n * static_cast<int64_t>(dtype_bytes(t));
  return static_cast<uint32_t>(std::min(kMost, bytes & -bytes));
}

/// Widths of the rows of a product's operands.
struct Widths {
  int64_t w, x, y;

  explicit Widths(const LinearProduct& p)
      : w(p.role == LinearRole::weight_gradient ? p.out : p.in),
        x(p.role == LinearRole::input_gradient ? p.out : p.in),
        y(p.role == LinearRole::forward ? p.out : p.in) {}
};

/// The product in the library's terms, column-major: y^T [out, rows] = W [out, in] x^T [in, rows],
/// dx^T [in, rows] = W^T [in, out] dy^T [out, rows] or dW^T [in, out] = x^T [in, rows] dy [rows, out].
/// The first operand of the last is x.
struct Description {
  cublasLtMatmulDescOpaque_t operation{};
  cublasLtMatrixLayoutOpaque_t first{}, second{}, y{};

  Description(const LinearProduct& p, const void* bias) {
    const Widths width(p);
    const bool of_weights = p.role == LinearRole::weight_gradient;
    check(cublasLtMatmulDescInit(&operation, CUBLAS_COMPUTE_32F, CUDA_R_32F), "no product");
    if (p.role == LinearRole::forward) set(CUBLASLT_MATMUL_DESC_TRANSA, CUBLAS_OP_T);
    if (of_weights) set(CUBLASLT_MATMUL_DESC_TRANSB, CUBLAS_OP_T);
    if (p.bias) {
      set(CUBLASLT_MATMUL_DESC_EPILOGUE, CUBLASLT_EPILOGUE_BIAS);
      set(CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, type_of(p.y_type));
      set(CUBLASLT_MATMUL_DESC_BIAS_POINTER, bias);
    }
    const auto rows_of = [](cublasLtMatrixLayoutOpaque_t& to, DType type, int64_t rows,
                            int64_t cols) {
      check(cublasLtMatrixLayoutInit(&to, type_of(type), static_cast<uint64_t>(cols),
                                     static_cast<uint64_t>(rows), cols),
            "no operand");
    };
    rows_of(of_weights ? second : first, p.dtype, of_weights ? p.rows : p.out, width.w);
    rows_of(of_weights ? first : second, p.dtype, p.rows, width.x);
    rows_of(y, p.y_type, of_weights ? p.out : p.rows, width.y);
  }
  template <class T>
  void set(cublasLtMatmulDescAttributes_t attribute, T value) {
    check(cublasLtMatmulDescSetAttribute(&operation, attribute, &value, sizeof value),
          "no attribute");
  }
};

struct Preference {
  cublasLtMatmulPreferenceOpaque_t opaque{};

  Preference(const LinearProduct& p, size_t workspace_bytes) {
    check(cublasLtMatmulPreferenceInit(&opaque), "no preference");
    set(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, uint64_t{workspace_bytes});
    // Not in place and not in y's type: both round the parts' sums to bf16.
    set(CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK,
        uint32_t{CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE});
    const Widths width(p);
    const bool of_weights = p.role == LinearRole::weight_gradient;
    const uint32_t of_w = alignment(width.w, p.dtype), of_x = alignment(width.x, p.dtype);
    set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, of_weights ? of_x : of_w);
    set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, of_weights ? of_w : of_x);
    set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, alignment(width.y, p.y_type));
    set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, alignment(width.y, p.y_type));
  }
  template <class T>
  void set(cublasLtMatmulPreferenceAttributes_t attribute, T value) {
    check(cublasLtMatmulPreferenceSetAttribute(&opaque, attribute, &value, sizeof value),
          "no preference");
  }
};

cublasLtMatmulAlgo_t as_library(const LinearChoice::Algorithm& a) {
  static_assert(sizeof(cublasLtMatmulAlgo_t) == sizeof(LinearChoice::Algorithm));
  return std::bit_cast<cublasLtMatmulAlgo_t>(a);
}

/// Any non-null pointer that is as aligned as biases are, for questions about a product.
const void* some_bias() {
  alignas(256) static const std::byte bias{};
  return &bias;
}

}  // namespace

std::string version() { return std::to_string(cublasLtGetVersion()); }

std::vector<LinearChoice::Algorithm> candidates(int device, const LinearProduct& product,
                                                size_t workspace_bytes, int most) {
  Description d(product, some_bias());
  Preference preference(product, workspace_bytes);
  std::vector<cublasLtMatmulHeuristicResult_t> found(static_cast<size_t>(most));
  int n = 0;
  const cublasStatus_t status =
      cublasLtMatmulAlgoGetHeuristic(handle(device), &d.operation, &d.first, &d.second, &d.y, &d.y,
                                     &preference.opaque, most, found.data(), &n);
  if (status != CUBLAS_STATUS_NOT_SUPPORTED) check(status, "no algorithm");
  std::vector<LinearChoice::Algorithm> algorithms;
  for (int i = 0; i < n; ++i)
    if (const auto& f = found[static_cast<size_t>(i)]; f.state == CUBLAS_STATUS_SUCCESS)
      algorithms.push_back(std::bit_cast<LinearChoice::Algorithm>(f.algo));
  return algorithms;
}

bool can_run(int device, const LinearProduct& product, const LinearChoice::Algorithm& algorithm,
             size_t workspace_bytes) {
  Description d(product, some_bias());
  const cublasLtMatmulAlgo_t algo = as_library(algorithm);
  cublasLtMatmulHeuristicResult_t result{};
  return cublasLtMatmulAlgoCheck(handle(device), &d.operation, &d.first, &d.second, &d.y, &d.y, &algo,
                                 &result) == CUBLAS_STATUS_SUCCESS &&
         result.state == CUBLAS_STATUS_SUCCESS && result.workspaceSize <= workspace_bytes;
}

void run(int device, const LinearProduct& product, const LinearChoice::Algorithm& algorithm,
         const Operands& o, Stream stream) {
  Description d(product, o.bias);
  const cublasLtMatmulAlgo_t algo = as_library(algorithm);
  const float alpha = 1, beta = product.accumulate ? 1.0f : 0.0f;
  const bool of_weights = product.role == LinearRole::weight_gradient;
  check(cublasLtMatmul(handle(device), &d.operation, &alpha, of_weights ? o.x : o.w, &d.first,
                       of_weights ? o.w : o.x, &d.second, &beta, o.y, &d.y, o.y, &d.y, &algo,
                       o.workspace, o.workspace_bytes, static_cast<cudaStream_t>(stream.handle)),
        "a product was refused");
}

}  // namespace tandem::ops::cublaslt
