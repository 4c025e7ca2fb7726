#include "io/gguf.h"

#include <algorithm>
#include <bit>
#include <charconv>
#include <cmath>
#include <cstring>
#include <fstream>

#include "base/check.h"
#include "base/error.h"
#include "io/quote.h"

namespace tandem::io {
namespace {

static_assert(std::endian::native == std::endian::little, "the format is little-endian");

/// Types of metadata, by their numbers in the file.
enum MetaType : uint32_t {
  kU8 = 0,
  kI8,
  kU16,
  kI16,
  kU32,
  kI32,
  kF32,
  kBool,
  kText,
  kList,
  kU64,
  kI64,
  kF64,
  kMetaTypes
};
constexpr size_t kMetaBytes[kMetaTypes] = {1, 1, 2, 2, 4, 4, 4, 1, 0, 0, 8, 8, 8};
constexpr size_t kLongestKey = 65535, kLongestName = 64;
constexpr uint32_t kMostDims = 4;
constexpr uint64_t kMostAligned = uint64_t{1} << 20;
constexpr const char* kFetchAgain = "fetch the file again";
constexpr const char* kPartsAgain = "fetch the parts again, and do not rename them";

template <class T>
T load_at(std::span<const std::byte> bytes, size_t at = 0) {
  T value;
  std::memcpy(&value, bytes.data() + at, sizeof(value));
  return value;
}

std::string_view text_of(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

/// An integer of any width; nothing for other types and values beyond 63 bits.
std::optional<int64_t> integer_of(uint32_t type, std::span<const std::byte> b) {
  switch (type) {
    case kU8:
      return load_at<uint8_t>(b);
    case kI8:
      return load_at<int8_t>(b);
    case kU16:
      return load_at<uint16_t>(b);
    case kI16:
      return load_at<int16_t>(b);
    case kU32:
      return load_at<uint32_t>(b);
    case kI32:
      return load_at<int32_t>(b);
    case kI64:
      return load_at<int64_t>(b);
    case kU64: {
      const auto value = load_at<uint64_t>(b);
      if (value > static_cast<uint64_t>(INT64_MAX)) return std::nullopt;
      return static_cast<int64_t>(value);
    }
    default:
      return std::nullopt;
  }
}

/// The parts of NAME-00001-of-00003.gguf; empty if the name is another.
struct PartName {
  std::string prefix;         // with its folder
  int part = 0, n_parts = 0;  // part: from 1 on
  std::string path(int i) const {
    return fmt::format("{}-{:05}-of-{:05}.gguf", prefix, i + 1, n_parts);
  }
};
std::optional<PartName> part_name(const std::filesystem::path& path) {
  const std::string name = path.string();
  constexpr std::string_view kForm = "-00000-of-00000.gguf";
  if (name.size() <= kForm.size()) return std::nullopt;
  const std::string tail = name.substr(name.size() - kForm.size());
  for (size_t i = 0; i < kForm.size(); ++i)
    if (kForm[i] == '0' ? tail[i] < '0' || tail[i] > '9' : tail[i] != kForm[i]) return std::nullopt;
  PartName found{.prefix = name.substr(0, name.size() - kForm.size())};
  std::from_chars(tail.data() + 1, tail.data() + 6, found.part);
  std::from_chars(tail.data() + 10, tail.data() + 15, found.n_parts);
  return found;
}

}  // namespace

/// Walks one part. Every length is checked against the bytes left before it is used.
class Gguf::Parser {
 public:
  Parser(Gguf& file, std::span<const std::byte> bytes, const std::string& where, size_t n_parts)
      : file_(file), bytes_(bytes), where_(where), n_parts_(n_parts) {}

  void run() {
    if (bytes_.size() < 4 || text_of(bytes_.first(4)) != "GGUF")
      throw input_error(where_, "is not a GGUF file: it does not begin with 'GGUF'")
          .hint("give a .gguf file, or a Hugging Face model folder");
    at_ = 4;
    const auto version = number<uint32_t>("the version");
    if ((version & 0xFFFFu) == 0)
      throw input_error(where_, "is a big-endian GGUF file, which is not supported")
          .hint("convert the model on a little-endian machine");
    if (version < 2 || version > 3)
      throw input_error(where_, "has GGUF version {}, expected 2 or 3", version)
          .hint("convert the model again with a current llama.cpp");
    const auto n_tensors = number<uint64_t>("the number of tensors");
    const auto n_values = number<uint64_t>("the number of metadata values");
    // The shortest entries have 24 and 13 bytes.
    if (n_tensors > bytes_.size() / 24 || n_values > bytes_.size() / 13)
      damaged(fmt::format("{} tensors and {} metadata values exceed its {} bytes", n_tensors,
                          n_values, bytes_.size()));
    std::map<std::string, Value, std::less<>> values;
    for (uint64_t i = 0; i < n_values; ++i) add_value(values);
    std::vector<GgufTensor> tensors;
    for (uint64_t i = 0; i < n_tensors; ++i) tensors.push_back(tensor_info());
    const size_t alignment = alignment_of(values);
    const size_t begin = (at_ + alignment - 1) / alignment * alignment;
    place(tensors, begin, alignment);
    if (n_parts_ > 1) check_split(values);
    if (file_.parts_.empty()) file_.values_ = std::move(values);
    for (GgufTensor& tensor : tensors) {
      tensor.part = file_.parts_.size();
      if (!file_.by_name_.emplace(tensor.name, file_.tensors_.size()).second)
        damaged(fmt::format("it has tensor {} twice", quote(tensor.name)));
      file_.tensors_.push_back(std::move(tensor));
    }
    file_.parts_.push_back(bytes_);
  }

 private:
  [[noreturn]] void damaged(const std::string& what) const {
    throw input_error(where_, "is a damaged GGUF file: {}", what).hint(kFetchAgain);
  }

  std::span<const std::byte> take(uint64_t n, std::string_view what) {
    if (n > bytes_.size() - at_)
      damaged(fmt::format("{} at byte {} needs {} bytes, {} are left", what, at_, n,
                          bytes_.size() - at_));
    const auto taken = bytes_.subspan(at_, n);
    at_ += n;
    return taken;
  }

  template <class T>
  T number(std::string_view what) {
    return load_at<T>(take(sizeof(T), what));
  }

  std::string name(size_t longest, std::string_view what) {
    const auto length = number<uint64_t>(what);
    if (length > longest)
      damaged(fmt::format("{} at byte {} has {} bytes, more than {}", what, at_, length, longest));
    return std::string(text_of(take(length, what)));
  }

  void add_value(std::map<std::string, Value, std::less<>>& values) {
    const std::string key = name(kLongestKey, "a key"), what = quote(key);
    Value v;
    v.type = number<uint32_t>(what);
    if (v.type == kList) {
      v.element = number<uint32_t>(what);
      v.count = number<uint64_t>(what);
      if (v.element == kList)
        throw input_error(where_, "key {} is an array of arrays, which is not supported", what);
    }
    const uint32_t of = v.type == kList ? v.element : v.type;
    if (of >= kMetaTypes) damaged(fmt::format("{} has the unknown type {}", what, of));
    const size_t begin = at_;
    if (of == kText) {
      if (v.count > bytes_.size() / 8)
        damaged(fmt::format("{} has {} strings, more than its bytes hold", what, v.count));
      for (uint64_t i = 0; i < v.count; ++i) take(number<uint64_t>(what), what);
    } else {
      if (v.count > bytes_.size())
        damaged(fmt::format("{} has {} items, more than its bytes hold", what, v.count));
      take(v.count * kMetaBytes[of], what);
    }
    v.bytes = bytes_.subspan(begin, at_ - begin);
    if (of == kBool)
      for (const std::byte b : v.bytes)
        if (std::to_integer<int>(b) > 1) damaged(fmt::format("{} is no boolean", what));
    if (!values.emplace(key, v).second) damaged(fmt::format("it has the key {} twice", what));
  }

  GgufTensor tensor_info() {
    GgufTensor t;
    t.name = name(kLongestName, "a tensor's name");
    const std::string what = quote(t.name);
    const auto n_dims = number<uint32_t>(what);
    if (n_dims < 1 || n_dims > kMostDims)
      damaged(fmt::format("tensor {} has {} dimensions", what, n_dims));
    uint64_t all = 1;
    for (uint32_t i = 0; i < n_dims; ++i) {
      const auto extent = number<uint64_t>(what);
      if (extent == 0 || __builtin_mul_overflow(all, extent, &all) || all > uint64_t{1} << 48)
        damaged(fmt::format("tensor {} has a dimension of {}", what, extent));
      t.shape.insert(t.shape.begin(), static_cast<int64_t>(extent));
    }
    const auto type = number<uint32_t>(what);
    t.begin = number<uint64_t>(what);
    if (!is_gguf_type(type))
      throw input_error(where_, "tensor {} is stored as {}, which is not supported", what,
                        gguf_type_name(type))
          .hint("supported: F32, F16, BF16, Q8_0, Q4_0, Q4_1, Q5_0, Q5_1, Q2_K to Q6_K");
    t.type = static_cast<GgufType>(type);
    if (t.shape.back() % gguf_block(t.type) != 0)
      damaged(fmt::format("tensor {} has rows of {} numbers, which {} stores in blocks of {}", what,
                          t.shape.back(), gguf_type_name(type), gguf_block(t.type)));
    t.bytes = gguf_bytes(t.type, static_cast<int64_t>(all));
    return t;
  }

  size_t alignment_of(const std::map<std::string, Value, std::less<>>& values) const {
    const auto it = values.find("general.alignment");
    if (it == values.end()) return 32;
    const auto given = integer_of(it->second.type, it->second.bytes);
    if (!given || *given < 1 || static_cast<uint64_t>(*given) > kMostAligned ||
        !std::has_single_bit(static_cast<uint64_t>(*given)))
      damaged("general.alignment is no power of two");
    return static_cast<size_t>(*given);
  }

  /// Turns offsets into places in the file.
  void place(std::vector<GgufTensor>& tensors, size_t begin, size_t alignment) const {
    std::vector<const GgufTensor*> by_place;
    for (GgufTensor& t : tensors) {
      const size_t offset = t.begin;
      if (offset % alignment != 0)
        damaged(fmt::format("tensor {} begins at {}, which is no multiple of {}", quote(t.name),
                            offset, alignment));
      if (begin > bytes_.size() || offset > bytes_.size() - begin ||
          t.bytes > bytes_.size() - begin - offset)
        damaged(fmt::format("tensor {} needs {} bytes from byte {} on, the file has {}",
                            quote(t.name), t.bytes, begin + offset, bytes_.size()));
      t.begin = begin + offset;
      by_place.push_back(&t);
    }
    std::ranges::sort(by_place, {}, &GgufTensor::begin);
    for (size_t i = 1; i < by_place.size(); ++i)
      if (by_place[i - 1]->begin + by_place[i - 1]->bytes > by_place[i]->begin)
        damaged(fmt::format("tensors {} and {} overlap", quote(by_place[i - 1]->name),
                            quote(by_place[i]->name)));
  }

  /// Checks that a part says which one it is, and of how many.
  void check_split(const std::map<std::string, Value, std::less<>>& values) const {
    for (const auto& [key, expected] :
         {std::pair{"split.no", file_.parts_.size()}, {"split.count", n_parts_}}) {
      const auto it = values.find(key);
      const auto found =
          it == values.end() ? std::nullopt : integer_of(it->second.type, it->second.bytes);
      if (found != std::optional(static_cast<int64_t>(expected)))
        throw input_error(where_, "{} is {}, expected {} by the file's name", key,
                          found ? fmt::format("{}", *found) : "absent", expected)
            .hint(kPartsAgain);
    }
  }

  Gguf& file_;
  std::span<const std::byte> bytes_;
  const std::string& where_;
  size_t n_parts_, at_ = 0;
};

bool is_gguf_file(const std::filesystem::path& path) {
  std::error_code ignored;
  if (!std::filesystem::is_regular_file(path, ignored)) return false;
  if (path.extension() == ".gguf") return true;
  std::string magic(4, ' ');
  std::ifstream(path, std::ios::binary).read(magic.data(), std::ssize(magic));
  return magic == "GGUF";
}

void Gguf::add_part(std::span<const std::byte> bytes, const std::string& where, size_t n_parts) {
  Parser(*this, bytes, where, n_parts).run();
}

Gguf Gguf::parse(std::span<const std::byte> bytes, const std::string& where) {
  Gguf file;
  file.where_ = where;
  file.add_part(bytes, where, 1);
  return file;
}

Gguf Gguf::open(const std::filesystem::path& path) {
  Gguf file;
  file.where_ = path.string();
  std::vector<std::string> paths = {path.string()};
  if (const auto split = part_name(path)) {
    if (split->part < 1 || split->part > split->n_parts)
      throw input_error(file.where_, "its name says that it is part {} of {}", split->part,
                        split->n_parts)
          .hint(kPartsAgain);
    paths.clear();
    std::vector<std::string> missing;
    for (int i = 0; i < split->n_parts; ++i) {
      paths.push_back(split->path(i));
      if (!std::filesystem::exists(paths.back()))
        missing.push_back(std::filesystem::path(paths.back()).filename().string());
    }
    if (const size_t n = missing.size(); n > 0) {
      constexpr size_t kMostListed = 20;
      missing.resize(std::min(n, kMostListed));
      throw input_error(file.where_, "{} of {} parts missing: {}{}", n, paths.size(),
                        fmt::join(missing, ", "),
                        n > kMostListed ? fmt::format(" and {} more", n - kMostListed) : "")
          .hint("fetch the missing parts into the same folder");
    }
    file.where_ = paths.front();
  }
  for (const std::string& part : paths) {
    file.files_.push_back(std::make_shared<const MappedFile>(part));
    file.add_part(file.files_.back()->bytes(), part, paths.size());
  }
  file.check_parts();
  return file;
}

void Gguf::check_parts() const {
  const auto n_parts = find_int("split.count", 0, INT32_MAX).value_or(1);
  if (std::max<int64_t>(1, n_parts) != std::ssize(parts_))
    throw input_error(where_, "is one of {} parts by split.count, found {}", n_parts, parts_.size())
        .hint("name the parts NAME-00001-of-00003.gguf and so on, in one folder");
  const auto n_tensors = find_int("split.tensors.count", 0, INT32_MAX);
  if (n_tensors ? *n_tensors != std::ssize(tensors_) : parts_.size() > 1)
    throw input_error(where_, "its parts have {} tensors, but split.tensors.count is {}",
                      tensors_.size(), n_tensors ? fmt::format("{}", *n_tensors) : "absent")
        .hint(kPartsAgain);
}

const GgufTensor* Gguf::find(std::string_view name) const {
  const auto it = by_name_.find(name);
  return it == by_name_.end() ? nullptr : &tensors_[it->second];
}

const Gguf::Value* Gguf::value(std::string_view key) const {
  const auto it = values_.find(key);
  return it == values_.end() ? nullptr : &it->second;
}

void Gguf::refuse_value(std::string_view key, const char* expected) const {
  throw input_error(where_, "key {}: expected {}", quote(key), expected).hint(kFetchAgain);
}

bool Gguf::is_array(std::string_view key) const {
  const Value* const v = value(key);
  return v != nullptr && v->type == kList;
}

std::optional<int64_t> Gguf::find_int(std::string_view key, int64_t min, int64_t max) const {
  const Value* const v = value(key);
  if (v == nullptr) return std::nullopt;
  const auto found = integer_of(v->type, v->bytes);
  if (!found) refuse_value(key, "an integer of at most 63 bits");
  if (*found < min || *found > max)
    throw input_error(where_, "key {}: expected a number from {} to {}, found {}", quote(key), min,
                      max, *found)
        .hint(kFetchAgain);
  return found;
}

std::optional<double> Gguf::find_double(std::string_view key) const {
  const Value* const v = value(key);
  if (v == nullptr) return std::nullopt;
  double found = 0;
  if (v->type == kF32)
    found = static_cast<double>(load_at<float>(v->bytes));
  else if (v->type == kF64)
    found = load_at<double>(v->bytes);
  else if (const auto whole = integer_of(v->type, v->bytes))
    found = static_cast<double>(*whole);
  else
    refuse_value(key, "a number");
  if (!std::isfinite(found)) refuse_value(key, "a finite number");
  return found;
}

std::optional<bool> Gguf::find_bool(std::string_view key) const {
  const Value* const v = value(key);
  if (v == nullptr) return std::nullopt;
  if (v->type != kBool) refuse_value(key, "a boolean");
  return load_at<uint8_t>(v->bytes) != 0;
}

std::optional<std::string_view> Gguf::find_string(std::string_view key) const {
  const Value* const v = value(key);
  if (v == nullptr) return std::nullopt;
  if (v->type != kText) refuse_value(key, "a string");
  return text_of(v->bytes.subspan(8));
}

const Gguf::Value* Gguf::array(std::string_view key) const {
  const Value* const v = value(key);
  if (v != nullptr && v->type != kList) refuse_value(key, "an array");
  return v;
}

std::vector<std::string_view> Gguf::strings(std::string_view key) const {
  std::vector<std::string_view> all;
  const Value* const v = array(key);
  if (v == nullptr) return all;
  if (v->element != kText) refuse_value(key, "an array of strings");
  size_t at = 0;
  for (uint64_t i = 0; i < v->count; ++i) {
    const auto length = load_at<uint64_t>(v->bytes, at);
    all.push_back(text_of(v->bytes.subspan(at + 8, length)));
    at += 8 + length;
  }
  return all;
}

std::vector<int64_t> Gguf::ints(std::string_view key) const {
  std::vector<int64_t> all;
  const Value* const v = array(key);
  if (v == nullptr) return all;
  for (uint64_t i = 0; i < v->count; ++i) {
    const size_t each = v->element < kMetaTypes ? kMetaBytes[v->element] : 0;
    const auto found = integer_of(v->element, v->bytes.subspan(i * each, each));
    if (!found) refuse_value(key, "an array of integers");
    all.push_back(*found);
  }
  return all;
}

std::vector<float> Gguf::floats(std::string_view key) const {
  std::vector<float> all;
  const Value* const v = array(key);
  if (v == nullptr) return all;
  if (v->element != kF32) refuse_value(key, "an array of f32 numbers");
  all.resize(v->count);
  std::memcpy(all.data(), v->bytes.data(), v->bytes.size());
  return all;
}

void Gguf::read(const GgufTensor& tensor, size_t begin, std::span<std::byte> out) const {
  TANDEM_CHECK(begin <= tensor.bytes && out.size() <= tensor.bytes - begin,
               "bytes {} to {} of a tensor of {}", begin, begin + out.size(), tensor.bytes);
  const auto range = parts_[tensor.part].subspan(tensor.begin + begin, out.size());
  if (files_.empty())
    std::memcpy(out.data(), range.data(), range.size());
  else
    files_[tensor.part]->read(range, out.data());
}

}  // namespace tandem::io
