#include "ops/product_code.h"

#include <algorithm>

#include "base/cpu_features.h"
#include "ops/onednn.h"

namespace tandem::ops {
namespace {

/// A primitive's code and its description, which oneDNN holds twice: 76 to 88 KiB under AVX-512
/// BF16 by shape and rows, one to sixteen threads.
constexpr size_t kPrimitiveBytes = size_t{80} << 10;
/// AMX generates more kernels for one product.
constexpr size_t kAmxPrimitiveBytes = size_t{104} << 10;
/// Pages of oneDNN's own code that its first products bring into memory, as measured.
constexpr size_t kLibraryBytes = size_t{512} << 10, kAmxLibraryBytes = size_t{1536} << 10;

bool by_onednn(DType dtype, Device device) {
  return device.kind == Device::Kind::cpu && dtype == DType::bf16 &&
         isa_in_use() >= Isa::avx512_bf16;
}

}  // namespace

size_t product_code_bytes(DType dtype, Device device, size_t shapes, int row_counts) {
  if (!by_onednn(dtype, device)) return 0;
  return shapes * std::min(static_cast<size_t>(row_counts), onednn::kMaxPrimitives) *
         (isa_in_use() >= Isa::amx ? kAmxPrimitiveBytes : kPrimitiveBytes);
}

size_t product_library_bytes(DType dtype, Device device) {
  if (!by_onednn(dtype, device)) return 0;
  return isa_in_use() >= Isa::amx ? kAmxLibraryBytes : kLibraryBytes;
}

}  // namespace tandem::ops
