#pragma once
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "io/gguf.h"

namespace tandem::io {

/// Writes the blocks of `n` numbers, which are given as codes in gguf_format(type): the inverse of
/// gguf_codes. Only Q4_0 and Q8_0 are supported.
void gguf_blocks(GgufType type, const std::byte* codes, int64_t n, std::byte* out);

/// A GGUF file, version 3, that is described first and then written in one go. Keys and tensors
/// keep their order; tensors begin at multiples of 32 bytes.
class GgufWriter {
 public:
  /// Adds a value to the metadata; each key is added once.
  void text(std::string_view key, std::string_view value);
  void number(std::string_view key, int64_t value);  // as u32
  void real(std::string_view key, double value);     // as f32
  void truth(std::string_view key, bool value);
  void texts(std::string_view key, std::span<const std::string> values);
  void ints(std::string_view key, std::span<const int32_t> values);
  void reals(std::string_view key, std::span<const float> values);

  /// Adds a tensor.
  /// shape    outermost first, the last extent in entire blocks
  void tensor(const std::string& name, GgufType type, const Shape& shape);

  size_t n_tensors() const { return tensors_.size(); }
  /// Bytes of all tensors, without padding.
  size_t data_bytes() const;
  /// The file up to its data.
  std::string header() const;
  /// Writes the file under a temporary name, syncs and renames it.
  /// write    hands over the bytes of tensor i, in the order in which tensors were added
  /// errors   kind input: cannot create, no space left, the name is taken
  void write(const std::filesystem::path& path,
             const std::function<void(size_t i, const ByteSink& sink)>& write,
             Existing existing = Existing::replaced) const;

 private:
  void begin(std::string_view key, uint32_t type);
  void begin_list(std::string_view key, uint32_t type, size_t n);

  std::string values_;
  std::vector<std::string> keys_;
  std::vector<GgufTensor> tensors_;  // begin: in the data
};

}  // namespace tandem::io
