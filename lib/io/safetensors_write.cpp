#include <algorithm>
#include <bit>
#include <cstring>
#include <optional>
#include <set>

#include "base/check.h"
#include "base/convert.h"
#include "base/error.h"
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

size_t bytes_of(const TensorView& tensor) {
  size_t n_bytes = dtype_bytes(tensor.dtype);
  for (const int64_t extent : tensor.shape) n_bytes *= static_cast<size_t>(extent);
  return n_bytes;
}

void check_size(const TensorView& tensor, size_t n_bytes) {
  TANDEM_CHECK(n_bytes == bytes_of(tensor), "tensor '{}' of shape {} needs {} bytes, has {}",
               tensor.name, shape_text(tensor.shape), bytes_of(tensor), n_bytes);
}

std::string header_text(std::span<const TensorView* const> order,
                        const std::map<std::string, std::string>& metadata) {
  nlohmann::ordered_json header = nlohmann::ordered_json::object();
  if (!metadata.empty()) header["__metadata__"] = metadata;
  size_t offset = 0;
  for (const TensorView* tensor : order) {
    const size_t end = offset + bytes_of(*tensor);
    header.push_back(
        {tensor->name,
         {{"dtype", tensor->spelling != nullptr ? tensor->spelling : file_spelling(tensor->dtype)},
          {"shape", tensor->shape},
          {"data_offsets", {offset, end}}}});
    offset = end;
  }
  // A name or a metadata value that is not UTF-8 cannot be represented: replaced, not thrown.
  std::string text = header.dump(-1, ' ', false, Json::error_handler_t::replace);
  text.resize((text.size() + 7) / 8 * 8, ' ');  // the data block begins 8-byte aligned
  return text;
}

/// By falling element size, so that every tensor is aligned to its type.
std::vector<const TensorView*> in_order(std::span<const TensorView> tensors) {
  static_assert(std::endian::native == std::endian::little, "the format is little-endian");
  std::set<std::string_view> names;
  std::vector<const TensorView*> order;
  for (const TensorView& tensor : tensors) {
    TANDEM_CHECK(names.insert(tensor.name).second, "tensor '{}' written twice", tensor.name);
    TANDEM_CHECK(tensor.name != "__metadata__", "tensor name '{}' is reserved", tensor.name);
    order.push_back(&tensor);
  }
  std::ranges::stable_sort(order, [](const TensorView* a, const TensorView* b) {
    return dtype_bytes(a->dtype) > dtype_bytes(b->dtype);
  });
  return order;
}

BlockSums sums_of(std::span<const TensorView* const> order, size_t block) {
  std::vector<size_t> sizes;
  for (const TensorView* tensor : order) sizes.push_back(bytes_of(*tensor));
  return {block, sizes};
}

}  // namespace

std::vector<std::byte> safetensors_bytes(std::span<const TensorView> tensors,
                                         const std::map<std::string, std::string>& metadata) {
  const std::vector<const TensorView*> order = in_order(tensors);
  const std::string header = header_text(order, metadata);
  const uint64_t n_header = header.size();
  size_t at = sizeof n_header + header.size();
  for (const TensorView* tensor : order) at += tensor->bytes.size();
  std::vector<std::byte> all(at);
  at = 0;
  const auto add = [&](const void* bytes, size_t n) {
    if (n > 0) std::memcpy(all.data() + at, bytes, n);
    at += n;
  };
  add(&n_header, sizeof n_header);
  add(header.data(), header.size());
  for (const TensorView* tensor : order) {
    check_size(*tensor, tensor->bytes.size());
    add(tensor->bytes.data(), tensor->bytes.size());
  }
  return all;
}

void write_safetensors(const std::filesystem::path& path, std::span<const TensorView> tensors,
                       const std::map<std::string, std::string>& metadata,
                       const std::function<void(size_t i, const ByteSink& sink)>& write,
                       size_t checksum_block, Existing existing) {
  const std::vector<const TensorView*> order = in_order(tensors);
  std::map<std::string, std::string> all = metadata;
  std::optional<BlockSums> sums;
  if (checksum_block > 0) {
    sums = sums_of(order, checksum_block);
    all[BlockSums::kKey] = sums->text();  // room for those of the data, which come later
  }
  const std::string header = header_text(order, all);
  const uint64_t n_header = header.size();
  if (n_header > kLargestHeader)
    throw input_error(path.string(), "needs a header of {} bytes, the format allows {}", n_header,
                      kLargestHeader)
        .hint("write fewer tensors, or less metadata, into one file");
  AtomicFile file(path, existing);
  file.write(std::as_bytes(std::span(&n_header, 1)));
  file.write(header);
  for (size_t t = 0; t < order.size(); ++t) {
    size_t written = 0;
    write(static_cast<size_t>(order[t] - tensors.data()), [&](std::span<const std::byte> bytes) {
      TANDEM_CHECK(bytes.size() <= bytes_of(*order[t]) - written,
                   "tensor '{}' has more bytes than its shape", order[t]->name);
      if (sums) sums->add(t, written, bytes);
      file.write(bytes);
      written += bytes.size();
    });
    check_size(*order[t], written);
  }
  if (sums) {
    all[BlockSums::kKey] = sums->text();
    file.rewrite(sizeof n_header, header_text(order, all));
  }
  file.commit();
}

void write_safetensors(const std::filesystem::path& path, std::span<const TensorView> tensors,
                       const std::map<std::string, std::string>& metadata, size_t checksum_block,
                       Existing existing) {
  for (const TensorView& tensor : tensors) check_size(tensor, tensor.bytes.size());
  const auto write = [&](size_t i, const ByteSink& sink) { sink(tensors[i].bytes); };
  write_safetensors(path, tensors, metadata, write, checksum_block, existing);
}

}  // namespace tandem::io
