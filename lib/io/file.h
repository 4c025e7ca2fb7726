#pragma once
#include <cstddef>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>

#include "base/interrupt.h"

namespace tandem::io {

/// The file that a chain of links ends at, whether it is there or not.
/// errors   kind input: the chain is a circle
std::filesystem::path link_target(const std::filesystem::path& path);

/// Whole file as bytes; "-" reads standard input. What a pipe brings is waited for.
/// errors   kind input: missing, unreadable, a folder, larger than `limit_bytes`; kind usage: an
///          output of this run (io/claimed_files.h); kind interrupted
std::string read_file(const std::filesystem::path& path, size_t limit_bytes = size_t{1} << 30);
/// Of a model folder or an adapter, where nothing else can take a file's place.
/// errors   and kind input: a pipe or a device
std::string read_regular_file(const std::filesystem::path& path,
                              size_t limit_bytes = size_t{1} << 30);
/// A file that the run itself writes, to go on with it: it may be a claimed output.
std::string read_own_output(const std::filesystem::path& path);

/// The question asked while a pipe or a terminal keeps a reader waiting.
void interrupt_reading_by(Interrupted interrupted);

/// Read-only memory mapping of a file, which stays open.
class MappedFile {
 public:
  MappedFile() = default;
  /// errors   kind input: missing, unreadable, a folder
  explicit MappedFile(const std::filesystem::path& path);
  ~MappedFile();
  MappedFile(MappedFile&& other) noexcept;
  MappedFile& operator=(MappedFile&& other) noexcept;

  std::span<const std::byte> bytes() const { return {data_, size_}; }
  /// Releases all physical pages: a page fault also maps cached neighbours of its page, on both
  /// sides, which no caller could name. The mapping stays valid and reads again on demand.
  void drop_pages() const;
  /// Copies a range of bytes() from the file into `out`, without faulting in pages of the mapping.
  /// errors   kind input: the file has become shorter, or cannot be read
  void read(std::span<const std::byte> range, void* out) const;

 private:
  std::string path_;
  int fd_ = -1;
  const std::byte* data_ = nullptr;
  size_t size_ = 0;
};

}  // namespace tandem::io
