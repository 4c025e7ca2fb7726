#include <algorithm>
#include <bit>
#include <set>

#include "base/check.h"
#include "base/convert.h"
#include "base/error.h"
#include "io/atomic_file.h"
#include "io/json.h"
#include "io/safetensors.h"

namespace tandem::io {
namespace {

const char* file_spelling(DType type) {
  switch (type) {
    case DType::f32:
      return "F32";
    case DType::bf16:
      return "BF16";
    case DType::f16:
      return "F16";
    case DType::i32:
      return "I32";
    case DType::i64:
      return "I64";
    case DType::u8:
      return "U8";
  }
  return "?";
}

void check_tensor(const TensorView& tensor, std::set<std::string_view>& names) {
  TANDEM_CHECK(names.insert(tensor.name).second, "tensor '{}' written twice", tensor.name);
  TANDEM_CHECK(tensor.name != "__metadata__", "'{}' is reserved", tensor.name);
  size_t n_bytes = dtype_bytes(tensor.dtype);
  for (const int64_t extent : tensor.shape) n_bytes *= static_cast<size_t>(extent);
  TANDEM_CHECK(n_bytes == tensor.bytes.size(), "tensor '{}' of shape {} needs {} bytes, has {}",
               tensor.name, shape_text(tensor.shape), n_bytes, tensor.bytes.size());
}

std::string header_text(std::span<const TensorView* const> order,
                        const std::map<std::string, std::string>& metadata) {
  nlohmann::ordered_json header = nlohmann::ordered_json::object();
  if (!metadata.empty()) header["__metadata__"] = metadata;
  size_t offset = 0;
  for (const TensorView* tensor : order) {
    const size_t end = offset + tensor->bytes.size();
    header.push_back({tensor->name,
                      {{"dtype", file_spelling(tensor->dtype)},
                       {"shape", tensor->shape},
                       {"data_offsets", {offset, end}}}});
    offset = end;
  }
  // A name or a metadata value that is not UTF-8 cannot be represented: replaced, not thrown.
  std::string text = header.dump(-1, ' ', false, Json::error_handler_t::replace);
  text.resize((text.size() + 7) / 8 * 8, ' ');  // the data block begins 8-byte aligned
  return text;
}

}  // namespace

void write_safetensors(const std::filesystem::path& path, std::span<const TensorView> tensors,
                       const std::map<std::string, std::string>& metadata) {
  static_assert(std::endian::native == std::endian::little, "the format is little-endian");
  std::set<std::string_view> names;
  std::vector<const TensorView*> order;
  for (const TensorView& tensor : tensors) {
    check_tensor(tensor, names);
    order.push_back(&tensor);
  }
  std::ranges::stable_sort(order, [](const TensorView* a, const TensorView* b) {
    return dtype_bytes(a->dtype) > dtype_bytes(b->dtype);
  });

  const std::string header = header_text(order, metadata);
  const uint64_t n_header = header.size();
  AtomicFile file(path);
  file.write(std::as_bytes(std::span(&n_header, 1)));
  file.write(header);
  for (const TensorView* tensor : order) file.write(tensor->bytes);
  file.commit();
}

}  // namespace tandem::io
