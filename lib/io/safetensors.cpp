#include "io/safetensors.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <optional>

#include "base/check.h"
#include "base/crc32.h"
#include "base/error.h"
#include "io/json.h"
#include "io/quote.h"

namespace tandem::io {
namespace {

static_assert(std::endian::native == std::endian::little, "the format is little-endian");

constexpr size_t kLengthBytes = 8;

struct DTypeInfo {
  std::string_view name;
  int bits;
  std::optional<DType> type;  // absent: the file is readable, this tensor is not
};

constexpr std::array kDTypes = {
    DTypeInfo{"F32", 32, DType::f32},      DTypeInfo{"BF16", 16, DType::bf16},
    DTypeInfo{"F16", 16, DType::f16},      DTypeInfo{"I32", 32, DType::i32},
    DTypeInfo{"I64", 64, DType::i64},      DTypeInfo{"U8", 8, DType::u8},
    DTypeInfo{"F64", 64, std::nullopt},    DTypeInfo{"I8", 8, std::nullopt},
    DTypeInfo{"I16", 16, std::nullopt},    DTypeInfo{"U16", 16, std::nullopt},
    DTypeInfo{"U32", 32, std::nullopt},    DTypeInfo{"U64", 64, std::nullopt},
    DTypeInfo{"BOOL", 8, std::nullopt},    DTypeInfo{"C64", 64, std::nullopt},
    DTypeInfo{"F8_E4M3", 8, std::nullopt}, DTypeInfo{"F8_E5M2", 8, std::nullopt},
    DTypeInfo{"F8_E8M0", 8, std::nullopt}, DTypeInfo{"F6_E2M3", 6, std::nullopt},
    DTypeInfo{"F6_E3M2", 6, std::nullopt}, DTypeInfo{"F4", 4, std::nullopt},
};

const DTypeInfo* find_dtype(std::string_view name) {
  const auto it = std::ranges::find(kDTypes, name, &DTypeInfo::name);
  return it == kDTypes.end() ? nullptr : &*it;
}

/// Bytes of a tensor; nothing if the product does not fit, or ends within a byte.
std::optional<size_t> tensor_bytes(const Shape& shape, int bits) {
  size_t n_bits = static_cast<size_t>(bits);
  for (const int64_t extent : shape)
    if (__builtin_mul_overflow(n_bits, static_cast<size_t>(extent), &n_bits)) return std::nullopt;
  if (n_bits % 8 != 0) return std::nullopt;
  return n_bits / 8;
}

/// Files that are often found under the name of a weight file.
Error no_safetensors(std::string_view text, const std::string& where, Error error) {
  if (text.starts_with("version https://git-lfs"))
    return input_error(where, "is a Git LFS pointer, expected safetensors weights")
        .hint("fetch the weights with 'git lfs pull'");
  if (text.starts_with("GGUF"))
    return input_error(where, "is a GGUF file, expected safetensors")
        .hint("use the model's original Hugging Face folder");
  if (text.starts_with("PK\x03\x04") || text.starts_with("\x80\x02"))
    return input_error(where, "is a PyTorch pickle file, expected safetensors")
        .hint("convert it with safetensors.torch.save_file, or use the model's safetensors files");
  return error;
}

size_t header_bytes(std::string_view text, const std::string& where) {
  if (text.size() < kLengthBytes)
    throw no_safetensors(
        text, where,
        input_error(
            where,
            "truncated: expected at least {} bytes for the header length, found a file of {} bytes",
            kLengthBytes, text.size())
            .hint("fetch the file again"));
  uint64_t n = 0;
  std::memcpy(&n, text.data(), kLengthBytes);
  if (n > kLargestHeader)
    throw no_safetensors(
        text, where,
        input_error(where, "is not a safetensors file: the header length is {} bytes, the limit {}",
                    n, kLargestHeader));
  if (n > text.size() - kLengthBytes)
    throw no_safetensors(
        text, where,
        input_error(where, "truncated: the header ends at byte {}, the file has {} bytes",
                    n + kLengthBytes, text.size())
            .hint("fetch the file again"));
  return n;
}

Shape parse_shape(const Json& value, const std::string& where) {
  const Json& array = get_array(value, "shape", where);
  Shape shape;
  shape.reserve(array.size());
  for (const Json& extent : array) shape.push_back(as_int(extent, "key 'shape'", where, 0));
  return shape;
}

TensorEntry parse_entry(const std::string& name, const Json& value, const std::string& file) {
  const std::string where = fmt::format("{}: tensor {}", file, quote(name));
  if (!value.is_object()) throw input_error(where, "expected an object, found {}", describe(value));
  TensorEntry entry{name, get_string(value, "dtype", where), parse_shape(value, where)};
  const Json& offsets = get_array(value, "data_offsets", where);
  if (offsets.size() != 2)
    throw input_error(where, "key 'data_offsets': expected [begin, end], found {}",
                      describe(offsets));
  entry.begin = static_cast<size_t>(as_int(offsets[0], "key 'data_offsets'", where, 0));
  entry.end = static_cast<size_t>(as_int(offsets[1], "key 'data_offsets'", where, 0));
  if (entry.end < entry.begin)
    throw input_error(where, "data_offsets [{}, {}] end before they begin", entry.begin, entry.end);
  const DTypeInfo* info = find_dtype(entry.dtype);
  if (info == nullptr) return entry;  // a type of the future: its size is not ours to judge
  const std::optional<size_t> expected = tensor_bytes(entry.shape, info->bits);
  if (!expected)
    throw input_error(where, "shape {} of {} needs 2^61 bytes or more, or a fraction of a byte",
                      shape_text(entry.shape), entry.dtype);
  if (*expected != entry.end - entry.begin)
    throw input_error(where, "shape {} of {} needs {} bytes, data_offsets span {}",
                      shape_text(entry.shape), entry.dtype, *expected, entry.end - entry.begin);
  return entry;
}

/// Entries must follow one another through the whole data block.
void check_layout(const std::vector<TensorEntry>& entries, size_t data_bytes,
                  const std::string& where) {
  size_t longest = 0;
  for (const TensorEntry& entry : entries) longest = std::max(longest, entry.end);
  if (longest > data_bytes)
    throw input_error(where, "truncated: the header promises {} bytes of data, the file holds {}",
                      longest, data_bytes)
        .hint("fetch the file again");
  const TensorEntry* previous = nullptr;
  size_t end = 0;
  for (const TensorEntry& entry : entries) {
    if (entry.begin < end)
      throw input_error(where, "tensors {} and {} overlap: bytes [{}, {}] and [{}, {}]",
                        quote(previous->name), quote(entry.name), previous->begin, previous->end,
                        entry.begin, entry.end);
    if (entry.begin > end)
      throw input_error(where, "{} bytes before tensor {} belong to no tensor", entry.begin - end,
                        quote(entry.name));
    end = entry.end;
    previous = &entry;
  }
  if (end != data_bytes)
    throw input_error(where, "{} bytes after the last tensor belong to no tensor",
                      data_bytes - end);
}

}  // namespace

std::string shape_text(const Shape& shape) {
  constexpr size_t kShown = 8;
  std::string text = "[";
  for (size_t i = 0; i < shape.size() && i < kShown; ++i)
    text += fmt::format("{}{}", i == 0 ? "" : ",", shape[i]);
  return text + (shape.size() > kShown ? ",...]" : "]");
}

Safetensors Safetensors::open(const std::filesystem::path& path) {
  auto file = std::make_shared<const MappedFile>(path);
  Safetensors result = parse(file->bytes(), path.string());
  result.file_ = std::move(file);
  result.drop_pages();  // of the header
  return result;
}

Safetensors Safetensors::hold(std::vector<std::byte> bytes, const std::string& where) {
  auto held = std::make_shared<const std::vector<std::byte>>(std::move(bytes));
  Safetensors result = parse(*held, where);
  result.held_ = std::move(held);
  return result;
}

Safetensors Safetensors::parse(std::span<const std::byte> bytes, const std::string& where) {
  const std::string_view text(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  const size_t n_header = header_bytes(text, where);
  const Json header = parse_json(text.substr(kLengthBytes, n_header), where + " (header)");
  if (!header.is_object())
    throw input_error(where, "header: expected an object, found {}", describe(header));

  Safetensors file;
  file.where_ = where;
  file.data_ = bytes.subspan(kLengthBytes + n_header);
  for (const auto& [name, value] : header.items()) {
    if (name != "__metadata__") {
      file.entries_.push_back(parse_entry(name, value, where));
      continue;
    }
    const std::string place = where + ": __metadata__";
    for (const auto& [key, item] : get_object(header, "__metadata__", where).items())
      file.metadata_[key] = as_string(item, "key " + quote(key), place);
  }
  std::ranges::sort(file.entries_, [](const TensorEntry& a, const TensorEntry& b) {
    return std::tie(a.begin, a.end) < std::tie(b.begin, b.end);
  });
  check_layout(file.entries_, file.data_.size(), where);
  for (size_t i = 0; i < file.entries_.size(); ++i) file.by_name_[file.entries_[i].name] = i;
  if (const auto sums = file.metadata_.find(BlockSums::kKey); sums != file.metadata_.end()) {
    std::vector<size_t> sizes;
    for (const TensorEntry& entry : file.entries_) sizes.push_back(entry.end - entry.begin);
    file.sums_ = BlockSums::parse(sums->second, sizes, where);
    file.metadata_.erase(sums);
  }
  return file;
}

const TensorEntry* Safetensors::find(std::string_view name) const {
  const auto it = by_name_.find(name);
  return it == by_name_.end() ? nullptr : &entries_[it->second];
}

TensorView Safetensors::tensor(std::string_view name) const {
  const TensorEntry* entry = find(name);
  if (entry == nullptr) throw input_error(where_, "tensor {} is missing", quote(name));
  return tensor(*entry);
}

TensorView Safetensors::tensor(const TensorEntry& entry) const {
  const DTypeInfo* info = find_dtype(entry.dtype);
  if (info == nullptr || !info->type)
    throw input_error(where_,
                      "tensor {} has dtype {}, expected one of F32, BF16, F16, I32, I64, U8",
                      quote(entry.name), quote(entry.dtype));
  return {entry.name, *info->type, entry.shape,
          data_.subspan(entry.begin, entry.end - entry.begin)};
}

TensorView Safetensors::bytes(const TensorEntry& entry) const {
  const size_t n = entry.end - entry.begin;
  return {entry.name, DType::u8, {static_cast<int64_t>(n)}, data_.subspan(entry.begin, n)};
}

void Safetensors::drop_pages() const {
  if (file_) file_->drop_pages();
}

TensorView rows_of(const TensorView& t, int64_t first, int64_t n) {
  TANDEM_CHECK(first >= 0 && n >= 0 && first + n <= t.shape.front(),
               "rows {} to {} exceed a tensor of {}", first, first + n, t.shape.front());
  TensorView rows = t;
  const size_t row_bytes = t.bytes.size() / static_cast<size_t>(t.shape.front());
  rows.shape.front() = n;
  rows.bytes =
      t.bytes.subspan(static_cast<size_t>(first) * row_bytes, static_cast<size_t>(n) * row_bytes);
  return rows;
}

void Safetensors::read(const TensorView& tensor, size_t begin, std::span<std::byte> out) const {
  TANDEM_CHECK(begin <= tensor.bytes.size() && out.size() <= tensor.bytes.size() - begin,
               "bytes {} to {} exceed a tensor of {} bytes", begin, begin + out.size(),
               tensor.bytes.size());
  const std::span<const std::byte> range = tensor.bytes.subspan(begin, out.size());
  if (file_)
    file_->read(range, out.data());
  else
    std::ranges::copy(range, out.begin());
  if (sums_) check_blocks(tensor, begin, out);
}

void Safetensors::check_blocks(const TensorView& tensor, size_t begin,
                               std::span<const std::byte> read) const {
  const auto it = by_name_.find(tensor.name);
  TANDEM_CHECK(it != by_name_.end(), "tensor '{}' belongs to another file", tensor.name);
  // A view may be a part of its tensor.
  const TensorEntry& entry = entries_[it->second];
  begin += static_cast<size_t>(tensor.bytes.data() - data_.data()) - entry.begin;
  const size_t block = sums_->block_bytes, all = entry.end - entry.begin, end = begin + read.size();
  for (size_t i = (begin + block - 1) / block; i * block < end; ++i) {
    const size_t from = i * block, to = std::min(from + block, all);
    if (to > end) return;
    const uint32_t found = crc32(read.subspan(from - begin, to - from)),
                   wanted = sums_->crcs[sums_->first[it->second] + i];
    if (found != wanted)
      throw input_error(
          where_, "tensor {} is damaged: bytes {} to {} have checksum {:08x}, expected {:08x}",
          quote(tensor.name), from, to - 1, found, wanted)
          .hint("the file was changed on disk or while copied: copy it again, or write it again");
  }
}

}  // namespace tandem::io
