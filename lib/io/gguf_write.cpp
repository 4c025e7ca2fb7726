#include "io/gguf_write.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <limits>
#include <type_traits>

#include "base/check.h"

namespace tandem::io {
namespace {

static_assert(std::endian::native == std::endian::little, "the format is little-endian");

constexpr size_t kWrittenAlignment = 32;
constexpr int64_t kBlockNumbers = 32;  // numbers of a block of Q4_0 and Q8_0
constexpr size_t kScaleSize = 2;       // bytes of its scale
constexpr uint32_t kWrittenVersion = 3;

/// Types of metadata that are written.
enum class Written : uint32_t { u32 = 4, i32 = 5, f32 = 6, truth = 7, text = 8, list = 9 };

template <class T>
requires std::is_trivially_copyable_v<T>
void append(std::string& to, T value) {
  to.append(reinterpret_cast<const char*>(&value), sizeof(value));
}

void append_text(std::string& to, std::string_view text) {
  append(to, uint64_t{text.size()});
  to += text;
}

size_t aligned(size_t n) {
  return (n + kWrittenAlignment - 1) / kWrittenAlignment * kWrittenAlignment;
}

/// Puts the low and the high nibbles of 16 bytes in the order of Q4_0: input j low, j + 16 high.
void put_halves(const std::byte* pairs, std::byte* out) {
  const auto nibble = [&](size_t j) {
    return j % 2 == 0 ? pairs[j / 2] & std::byte{15} : pairs[j / 2] >> 4;
  };
  for (size_t j = 0; j < kBlockNumbers / 2; ++j)
    out[j] = nibble(j) | nibble(j + kBlockNumbers / 2) << 4;
}

}  // namespace

void gguf_blocks(GgufType type, const std::byte* codes, int64_t n, std::byte* out) {
  TANDEM_CHECK(type == GgufType::q4_0 || type == GgufType::q8_0, "{} is not written",
               gguf_type_name(static_cast<uint32_t>(type)));
  const size_t block = gguf_bytes(type, kBlockNumbers), n_codes = block - kScaleSize;
  for (int64_t i = 0; i < n; i += kBlockNumbers, codes += block, out += block) {
    std::memcpy(out, codes + n_codes, kScaleSize);
    if (type == GgufType::q4_0)
      put_halves(codes, out + kScaleSize);
    else
      std::memcpy(out + kScaleSize, codes, n_codes);
  }
}

void GgufWriter::begin(std::string_view key, uint32_t type) {
  TANDEM_CHECK(std::ranges::find(keys_, key) == keys_.end(), "key '{}' written twice", key);
  keys_.emplace_back(key);
  append_text(values_, key);
  append(values_, type);
}

void GgufWriter::begin_list(std::string_view key, uint32_t type, size_t n) {
  begin(key, static_cast<uint32_t>(Written::list));
  append(values_, type);
  append(values_, uint64_t{n});
}

void GgufWriter::text(std::string_view key, std::string_view value) {
  begin(key, static_cast<uint32_t>(Written::text));
  append_text(values_, value);
}

void GgufWriter::number(std::string_view key, int64_t value) {
  TANDEM_CHECK(value >= 0 && value <= std::numeric_limits<uint32_t>::max(), "{} {} is not a u32",
               key, value);
  begin(key, static_cast<uint32_t>(Written::u32));
  append(values_, static_cast<uint32_t>(value));
}

void GgufWriter::real(std::string_view key, double value) {
  begin(key, static_cast<uint32_t>(Written::f32));
  append(values_, static_cast<float>(value));
}

void GgufWriter::truth(std::string_view key, bool value) {
  begin(key, static_cast<uint32_t>(Written::truth));
  append(values_, static_cast<uint8_t>(value));
}

void GgufWriter::texts(std::string_view key, std::span<const std::string> values) {
  begin_list(key, static_cast<uint32_t>(Written::text), values.size());
  for (const std::string& value : values) append_text(values_, value);
}

void GgufWriter::ints(std::string_view key, std::span<const int32_t> values) {
  begin_list(key, static_cast<uint32_t>(Written::i32), values.size());
  for (const int32_t value : values) append(values_, value);
}

void GgufWriter::reals(std::string_view key, std::span<const float> values) {
  begin_list(key, static_cast<uint32_t>(Written::f32), values.size());
  for (const float value : values) append(values_, value);
}

void GgufWriter::tensor(const std::string& name, GgufType type, const Shape& shape) {
  TANDEM_CHECK(!shape.empty() && shape.back() % gguf_block(type) == 0,
               "tensor '{}' of shape {} has no entire blocks", name, shape_text(shape));
  TANDEM_CHECK(std::ranges::find(tensors_, name, &GgufTensor::name) == tensors_.end(),
               "tensor '{}' written twice", name);
  int64_t n = 1;
  for (const int64_t extent : shape) n *= extent;
  const size_t begin =
      tensors_.empty() ? 0 : aligned(tensors_.back().begin + tensors_.back().bytes);
  tensors_.push_back(
      {.name = name, .type = type, .shape = shape, .begin = begin, .bytes = gguf_bytes(type, n)});
}

size_t GgufWriter::data_bytes() const {
  size_t n = 0;
  for (const GgufTensor& t : tensors_) n += t.bytes;
  return n;
}

std::string GgufWriter::header() const {
  std::string all = "GGUF";
  append(all, kWrittenVersion);
  append(all, uint64_t{tensors_.size()});
  append(all, uint64_t{keys_.size()});
  all += values_;
  for (const GgufTensor& t : tensors_) {
    append_text(all, t.name);
    append(all, static_cast<uint32_t>(t.shape.size()));
    for (size_t i = t.shape.size(); i-- > 0;) append(all, static_cast<uint64_t>(t.shape[i]));
    append(all, static_cast<uint32_t>(t.type));
    append(all, uint64_t{t.begin});
  }
  all.resize(aligned(all.size()));
  return all;
}

void GgufWriter::write(const std::filesystem::path& path,
                       const std::function<void(size_t i, const ByteSink& sink)>& write,
                       Existing existing) const {
  AtomicFile file(path, existing);
  file.write(header());
  for (size_t i = 0; i < tensors_.size(); ++i) {
    const GgufTensor& t = tensors_[i];
    size_t written = 0;
    write(i, [&](std::span<const std::byte> bytes) {
      TANDEM_CHECK(bytes.size() <= t.bytes - written, "tensor '{}' has more bytes than its shape",
                   t.name);
      file.write(bytes);
      written += bytes.size();
    });
    TANDEM_CHECK(written == t.bytes, "tensor '{}' needs {} bytes, has {}", t.name, t.bytes,
                 written);
    file.write(std::string(aligned(t.bytes) - t.bytes, '\0'));
  }
  file.commit();
}

}  // namespace tandem::io
