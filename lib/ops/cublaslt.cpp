#include "ops/cublaslt.h"

#include <cublasLt.h>
#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <map>
#include <mutex>

#include "base/error.h"
#include "base/shared_library.h"
#include "tensor/cuda.h"

namespace tandem::ops::cublaslt {
namespace {

#define TANDEM_TEXT_OF(x) #x
#define TANDEM_CUBLASLT(major) "libcublasLt.so." TANDEM_TEXT_OF(major)

/// What of its interface is called here. The header's inline functions call the three `_internal`
/// ones. Loaded when first asked: to map it takes longer, and more memory, than all else that a
/// tool does to start, and without a GPU it is of no use.
struct Library {
  SharedLibrary file{
      "cuBLASLt", TANDEM_CUBLASLT(CUBLAS_VER_MAJOR),
      "matrix products on a GPU need it: install that version of the CUDA toolkit or of "
      "nvidia-cublas (PyPI), and add its folder to LD_LIBRARY_PATH"};
#define TANDEM_FUNCTION(name, symbol) decltype(&symbol) name = file[#symbol]
  TANDEM_FUNCTION(version, cublasLtGetVersion);
  TANDEM_FUNCTION(status_text, cublasLtGetStatusString);
  TANDEM_FUNCTION(create, cublasLtCreate);
  TANDEM_FUNCTION(init_operation, cublasLtMatmulDescInit_internal);
  TANDEM_FUNCTION(set_operation, cublasLtMatmulDescSetAttribute);
  TANDEM_FUNCTION(init_matrix, cublasLtMatrixLayoutInit_internal);
  TANDEM_FUNCTION(init_preference, cublasLtMatmulPreferenceInit_internal);
  TANDEM_FUNCTION(set_preference, cublasLtMatmulPreferenceSetAttribute);
  TANDEM_FUNCTION(algorithms_of, cublasLtMatmulAlgoGetHeuristic);
  TANDEM_FUNCTION(check_algorithm, cublasLtMatmulAlgoCheck);
  TANDEM_FUNCTION(multiply, cublasLtMatmul);
#undef TANDEM_FUNCTION
};

/// errors   kind device: not to be found
const Library& library() {
  static const Library loaded;
  return loaded;
}

void check(cublasStatus_t status, const char* what) {
  if (status == CUBLAS_STATUS_SUCCESS) [[likely]]
    return;
  const bool memory = status == CUBLAS_STATUS_ALLOC_FAILED;
  throw make_error(memory ? ErrorKind::memory : ErrorKind::device, "cuBLASLt", "{}: {}", what,
                   library().status_text(status));
}

/// One a GPU for the whole process: they hold no workspace and may be used by several threads.
cublasLtHandle_t handle(int device) {
  static std::mutex mutex;
  static std::map<int, cublasLtHandle_t> handles;
  const std::scoped_lock lock(mutex);
  if (const auto it = handles.find(device); it != handles.end()) return it->second;
  cuda::use_device(device);
  cublasLtHandle_t h = nullptr;
  check(library().create(&h), "cannot initialise the library");
  return handles[device] = h;
}

cudaDataType type_of(DType t) { return t == DType::bf16 ? CUDA_R_16BF : CUDA_R_32F; }

/// The product in the library's terms, column-major: c^T = op(b)^T op(a)^T, where a row-major
/// matrix is its own transpose.
struct Description {
  cublasLtMatmulDescOpaque_t operation{};
  cublasLtMatrixLayoutOpaque_t a{}, b{}, c{};

  Description(const Product& p, const Operands& at) {
    const bool is_fp8 = p.scales != Scales::none;
    check(library().init_operation(&operation, sizeof operation, CUBLAS_COMPUTE_32F, CUDA_R_32F),
          "cannot describe the product");
    if (p.b_transposed) set(CUBLASLT_MATMUL_DESC_TRANSA, CUBLAS_OP_T);
    if (p.a_transposed) set(CUBLASLT_MATMUL_DESC_TRANSB, CUBLAS_OP_T);
    if (p.bias) {
      set(CUBLASLT_MATMUL_DESC_EPILOGUE, CUBLASLT_EPILOGUE_BIAS);
      set(CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, is_fp8 ? CUDA_R_16BF : type_of(p.c_type));
      set(CUBLASLT_MATMUL_DESC_BIAS_POINTER, at.bias);
    }
    if (is_fp8) {
      const int32_t mode = p.scales == Scales::rows ? CUBLASLT_MATMUL_MATRIX_SCALE_OUTER_VEC_32F
                                                    : CUBLASLT_MATMUL_MATRIX_SCALE_VEC128_32F;
      set(CUBLASLT_MATMUL_DESC_A_SCALE_MODE, mode);
      set(CUBLASLT_MATMUL_DESC_B_SCALE_MODE, mode);
      set(CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, at.b_scales);
      set(CUBLASLT_MATMUL_DESC_B_SCALE_POINTER, at.a_scales);
    }
    const auto matrix = [](cublasLtMatrixLayoutOpaque_t& to, cudaDataType type, int64_t rows,
                           int64_t cols, int64_t stride) {
      check(library().init_matrix(&to, sizeof to, type, static_cast<uint64_t>(cols),
                                  static_cast<uint64_t>(rows), stride),
            "cannot describe an operand");
    };
    const cudaDataType type = is_fp8 ? CUDA_R_8F_E4M3 : type_of(p.type);
    matrix(a, type, p.a_transposed ? p.k : p.m, p.a_transposed ? p.m : p.k, p.a_stride);
    matrix(b, type, p.b_transposed ? p.n : p.k, p.b_transposed ? p.k : p.n, p.b_stride);
    matrix(c, type_of(p.c_type), p.m, p.n, p.c_stride);
  }
  template <class T>
  void set(cublasLtMatmulDescAttributes_t attribute, T value) {
    check(library().set_operation(&operation, attribute, &value, sizeof value),
          "cannot set an attribute of the product");
  }
};

struct Preference {
  cublasLtMatmulPreferenceOpaque_t opaque{};

  Preference(const Product& p, size_t workspace_bytes) {
    check(library().init_preference(&opaque, sizeof opaque),
          "cannot set the preferences of the search");
    set(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, uint64_t{workspace_bytes});
    // Not in place and not in y's type: both round the parts' sums to bf16.
    set(CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK,
        uint32_t{CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE});
    set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, p.b_alignment);
    set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, p.a_alignment);
    set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, p.c_alignment);
    set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, p.c_alignment);
  }
  template <class T>
  void set(cublasLtMatmulPreferenceAttributes_t attribute, T value) {
    check(library().set_preference(&opaque, attribute, &value, sizeof value),
          "cannot set the preferences of the search");
  }
};

cublasLtMatmulAlgo_t as_library(const LinearChoice::Algorithm& a) {
  static_assert(sizeof(cublasLtMatmulAlgo_t) == sizeof(LinearChoice::Algorithm));
  return std::bit_cast<cublasLtMatmulAlgo_t>(a);
}

/// Pointers as aligned as those of a run, for questions about a product.
Operands some_operands() {
  alignas(256) static const float some{};
  return {.c = nullptr,
          .a = nullptr,
          .b = nullptr,
          .bias = &some,
          .workspace = nullptr,
          .workspace_bytes = 0,
          .a_scales = &some,
          .b_scales = &some};
}

}  // namespace

std::string version() { return std::to_string(library().version()); }

uint32_t alignment(int64_t stride, DType type, uintptr_t address) {
  constexpr uint64_t kMost = 16;
  const uint64_t bits = address | static_cast<uint64_t>(stride) * dtype_bytes(type) | kMost;
  return static_cast<uint32_t>(bits & -bits);
}

std::vector<LinearChoice::Algorithm> candidates(int device, const Product& product,
                                                size_t workspace_bytes, int most) {
  Description d(product, some_operands());
  Preference preference(product, workspace_bytes);
  std::vector<cublasLtMatmulHeuristicResult_t> found(static_cast<size_t>(most));
  int n = 0;
  const cublasStatus_t status =
      library().algorithms_of(handle(device), &d.operation, &d.b, &d.a, &d.c, &d.c,
                              &preference.opaque, most, found.data(), &n);
  if (status != CUBLAS_STATUS_NOT_SUPPORTED) check(status, "cannot search for an algorithm");
  std::vector<LinearChoice::Algorithm> algorithms;
  for (int i = 0; i < n; ++i)
    if (const auto& f = found[static_cast<size_t>(i)]; f.state == CUBLAS_STATUS_SUCCESS)
      algorithms.push_back(std::bit_cast<LinearChoice::Algorithm>(f.algo));
  return algorithms;
}

bool can_run(int device, const Product& product, const LinearChoice::Algorithm& algorithm,
             size_t workspace_bytes) {
  Description d(product, some_operands());
  const cublasLtMatmulAlgo_t algo = as_library(algorithm);
  cublasLtMatmulHeuristicResult_t result{};
  return library().check_algorithm(handle(device), &d.operation, &d.b, &d.a, &d.c, &d.c, &algo,
                                   &result) == CUBLAS_STATUS_SUCCESS &&
         result.state == CUBLAS_STATUS_SUCCESS && result.workspaceSize <= workspace_bytes;
}

void run(int device, const Product& product, const LinearChoice::Algorithm& algorithm,
         const Operands& o, Stream stream) {
  Description d(product, o);
  const cublasLtMatmulAlgo_t algo = as_library(algorithm);
  const float alpha = o.scale, beta = product.accumulate ? 1.0f : 0.0f;
  check(library().multiply(handle(device), &d.operation, &alpha, o.b, &d.b, o.a, &d.a, &beta, o.c,
                           &d.c, o.c, &d.c, &algo, o.workspace, o.workspace_bytes,
                           static_cast<cudaStream_t>(stream.handle)),
        "cannot run the product");
}

}  // namespace tandem::ops::cublaslt
