#pragma once
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/weight_format.h"
#include "io/file.h"
#include "io/safetensors.h"

namespace tandem::io {

/// Encodings of tensors that are read, by their numbers in the file.
enum class GgufType : uint32_t {
  f32 = 0,
  f16 = 1,
  q4_0 = 2,
  q4_1 = 3,
  q5_0 = 6,
  q5_1 = 7,
  q8_0 = 8,
  q2_k = 10,
  q3_k = 11,
  q4_k = 12,
  q5_k = 13,
  q6_k = 14,
  bf16 = 30
};

/// "Q4_K"; also of encodings that are not read, as "IQ4_XS" or "type 77".
std::string gguf_type_name(uint32_t type);
/// True for an encoding that is read.
bool is_gguf_type(uint32_t type);
/// Numbers of a block, which a row consists of.
int64_t gguf_block(GgufType type);
/// Bytes of `n` numbers, whole blocks.
size_t gguf_bytes(GgufType type, int64_t n);
/// The format that holds a type's numbers: plain numbers, or codes of its blocks.
WeightFormat gguf_format(GgufType type);
/// Decodes `n` numbers, whole blocks.
/// numerics f32 products in the order of ggml's reference
/// source   ggml, ggml-quants.c: dequantize_row_*
void decode_gguf(GgufType type, const std::byte* blocks, int64_t n, float* out);
/// Writes the codes of `n` numbers, whole blocks, in gguf_format(type).
/// numerics exact
/// result   false if a scale or a minimum is infinite or NaN
[[nodiscard]] bool gguf_codes(GgufType type, const std::byte* blocks, int64_t n, std::byte* out);

/// One tensor of a GGUF file.
struct GgufTensor {
  std::string name;
  GgufType type = GgufType::f32;
  Shape shape;                  // outermost first: [out, in]
  size_t part = 0;              // the file that holds it
  size_t begin = 0, bytes = 0;  // in that file
};

/// True for a file that is named so or begins so.
bool is_gguf_file(const std::filesystem::path& path);

/// Reader of the GGUF format, versions 2 and 3, of one file or of several parts named
/// NAME-00001-of-00003.gguf. Counts, strings, types and offsets are checked against the size of the
/// file before anything is handed out; metadata stay in the mapping.
class Gguf {
 public:
  /// path     a file, or any of the parts
  /// errors   kind input: missing (all parts are listed), or as for parse; parts that do not belong
  ///          together
  static Gguf open(const std::filesystem::path& path);
  /// The bytes must outlive the result.
  /// errors   kind input at `where`: damaged, big-endian, another version, an encoding that is not
  ///          read (named), tensors that overlap or exceed the file
  static Gguf parse(std::span<const std::byte> bytes, const std::string& where);

  const std::string& where() const { return where_; }
  const std::vector<GgufTensor>& tensors() const { return tensors_; }
  const GgufTensor* find(std::string_view name) const;

  /// Values of the metadata; nothing where the key is absent.
  /// errors   kind input: a value of another type or out of range
  bool has(std::string_view key) const { return values_.contains(key); }
  bool is_array(std::string_view key) const;
  std::optional<int64_t> find_int(std::string_view key, int64_t min, int64_t max) const;
  std::optional<double> find_double(std::string_view key) const;
  std::optional<bool> find_bool(std::string_view key) const;
  std::optional<std::string_view> find_string(std::string_view key) const;
  std::vector<std::string_view> strings(std::string_view key) const;
  std::vector<int64_t> ints(std::string_view key) const;
  std::vector<float> floats(std::string_view key) const;

  /// Copies bytes of a tensor, from byte `begin` of it on, without faulting in pages of the
  /// mapping.
  /// errors   kind input: the file has become shorter, or cannot be read
  void read(const GgufTensor& tensor, size_t begin, std::span<std::byte> out) const;

 private:
  /// A value as it lies in the file.
  struct Value {
    uint32_t type = 0, element = 0;  // element: of an array
    uint64_t count = 1;
    std::span<const std::byte> bytes;
  };
  class Parser;

  const Value* value(std::string_view key) const;
  const Value* array(std::string_view key) const;
  [[noreturn]] void refuse_value(std::string_view key, const char* expected) const;
  /// n_parts  counted by the name of the file
  void add_part(std::span<const std::byte> bytes, const std::string& where, size_t n_parts);
  void check_parts() const;

  std::string where_;
  std::vector<std::shared_ptr<const MappedFile>> files_;  // empty: in memory
  std::vector<std::span<const std::byte>> parts_;
  std::vector<GgufTensor> tensors_;
  std::map<std::string, size_t, std::less<>> by_name_;
  std::map<std::string, Value, std::less<>> values_;
};

}  // namespace tandem::io
