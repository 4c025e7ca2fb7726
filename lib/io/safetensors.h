#pragma once
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/types.h"
#include "io/atomic_file.h"
#include "io/file.h"

namespace tandem::io {

using Shape = std::vector<int64_t>;

/// "[8192,384]"
std::string shape_text(const Shape& shape);

/// A named, typed, row-major block of bytes. In a file it may start at any address: copy elements
/// out with memcpy, or check the alignment first.
struct TensorView {
  std::string name;
  DType dtype = DType::f32;
  Shape shape;
  std::span<const std::byte> bytes;
  const char* spelling = nullptr;  // dtype in a file that is written, "F8_E4M3"; null: as dtype
};

/// Rows [first, first + n) of a matrix or vector, under its name.
TensorView rows_of(const TensorView& tensor, int64_t first, int64_t n);

/// One line of a safetensors header, checked against the file.
struct TensorEntry {
  std::string name;
  std::string dtype;  // as the file spells it: "BF16", "F8_E4M3", ...
  Shape shape;
  size_t begin = 0, end = 0;  // bytes within the data block
};

/// Bytes of a header that readers take, at most: the limit of the format's own library.
inline constexpr uint64_t kLargestHeader = 100'000'000;

/// CRC-32 of the blocks that a file's tensors are cut into, each from its own begin; the last one
/// of a tensor may be shorter. They lie in the metadata, which other readers of the format pass
/// over.
struct BlockSums {
  static constexpr const char* kKey = "crc32.blocks";

  size_t block_bytes = 0;
  std::vector<uint32_t> crcs;  // of the tensors in file order
  std::vector<size_t> first;   // of each tensor's, and all

  /// Lays out blocks of tensors of these sizes, with the checksums of no bytes.
  BlockSums(size_t block, std::span<const size_t> tensor_bytes);
  /// Goes on with the bytes of a tensor from `begin` on, which follow those before.
  void add(size_t tensor, size_t begin, std::span<const std::byte> bytes);
  /// Its length does not depend on the checksums.
  std::string text() const;
  /// errors   kind input at `where`: not the text of blocks of such tensors
  static BlockSums parse(std::string_view text, std::span<const size_t> tensor_bytes,
                         const std::string& where);
};

/// Reader of the safetensors format: 8 bytes of header length, a JSON header, one data block that
/// the tensors fill without overlap or gap. Everything is checked before any tensor is handed out.
class Safetensors {
 public:
  /// errors   kind input: missing, or as for parse
  static Safetensors open(const std::filesystem::path& path);
  /// Views point into `bytes`, which must outlive the result.
  /// errors   kind input at `where`: header length, JSON, types, wrong sizes or offsets, tensors
  ///          that overlap, a truncated file, checksums of other data
  static Safetensors parse(std::span<const std::byte> bytes, const std::string& where);
  /// The same of bytes that the result and its copies keep.
  static Safetensors hold(std::vector<std::byte> bytes, const std::string& where);

  const std::string& where() const { return where_; }
  const std::vector<TensorEntry>& entries() const { return entries_; }  // in file order
  /// Without the checksums.
  const std::map<std::string, std::string>& metadata() const { return metadata_; }
  const TensorEntry* find(std::string_view name) const;
  /// errors   kind input: no such tensor; a dtype that tandem has no type for (F8_E4M3, I16, ...)
  TensorView tensor(std::string_view name) const;
  TensorView tensor(const TensorEntry& entry) const;
  /// A tensor of any type as bytes, u8 [n].
  TensorView bytes(const TensorEntry& entry) const;

  size_t data_bytes() const { return data_.size(); }
  /// Releases the physical pages of this file; does nothing where that is in memory.
  void drop_pages() const;
  /// Copies bytes of a tensor of this file, from byte `begin` of it on, past the mapping. Of a file
  /// with checksums, those of the blocks that lie whole in the range are checked.
  /// errors  kind input: the file has become shorter, or cannot be read; a block is damaged
  void read(const TensorView& tensor, size_t begin, std::span<std::byte> out) const;

 private:
  void check_blocks(const TensorView& tensor, size_t begin, std::span<const std::byte> read) const;

  std::string where_;
  std::shared_ptr<const MappedFile> file_;              // null of one in memory
  std::shared_ptr<const std::vector<std::byte>> held_;  // after hold()
  std::span<const std::byte> data_;
  std::vector<TensorEntry> entries_;
  std::map<std::string, size_t, std::less<>> by_name_;
  std::map<std::string, std::string> metadata_;
  std::optional<BlockSums> sums_;
};

/// A safetensors file in memory, without checksums.
std::vector<std::byte> safetensors_bytes(std::span<const TensorView> tensors,
                                         const std::map<std::string, std::string>& metadata = {});

/// Writes a safetensors file under a temporary name, syncs and renames it: a reader sees the old
/// file or the whole new one. Data are laid out by falling element size, so that every tensor is
/// aligned to its type; the data block starts at a multiple of 8 bytes.
/// checksum_block   bytes of a block whose checksum the file gets, and of which readers may read any
///                  alone; 0 for a file without
/// existing         as AtomicFile takes it
/// errors   kind input: cannot create, no space left (names the bytes needed); the name is taken;
///          more tensors and metadata than a header holds, before anything is written
void write_safetensors(const std::filesystem::path& path, std::span<const TensorView> tensors,
                       const std::map<std::string, std::string>& metadata = {},
                       size_t checksum_block = 0, Existing existing = Existing::replaced);

/// Blocks of a file that is read from begin to end, in pieces of some of them.
inline constexpr size_t kChecksumBlock = size_t{64} << 10;

/// Takes the next bytes of a tensor.
using ByteSink = std::function<void(std::span<const std::byte>)>;

/// The same of tensors that are made while they are written, so that none need stand in memory:
/// write(i, sink) hands over the bytes of tensors[i], whose own are not looked at, in order.
void write_safetensors(const std::filesystem::path& path, std::span<const TensorView> tensors,
                       const std::map<std::string, std::string>& metadata,
                       const std::function<void(size_t i, const ByteSink& sink)>& write,
                       size_t checksum_block = 0, Existing existing = Existing::replaced);

}  // namespace tandem::io
