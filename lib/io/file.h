#pragma once
#include <cstddef>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>

namespace tandem::io {

/// Whole file as bytes; "-" reads standard input.
/// errors   kind input: missing, unreadable, a folder, larger than `limit_bytes`
std::string read_file(const std::filesystem::path& path, size_t limit_bytes = size_t{1} << 30);

/// Read-only memory mapping of a file.
class MappedFile {
 public:
  MappedFile() = default;
  /// errors   kind input: missing, unreadable, a folder
  explicit MappedFile(const std::filesystem::path& path);
  ~MappedFile();
  MappedFile(MappedFile&& other) noexcept;
  MappedFile& operator=(MappedFile&& other) noexcept;

  std::span<const std::byte> bytes() const { return {data_, size_}; }
  /// Gives the physical pages of a range back, and of up to 2 MiB before it; the mapping stays valid
  /// and reads again on demand.
  void drop_pages(std::span<const std::byte> range) const;

 private:
  const std::byte* data_ = nullptr;
  size_t size_ = 0;
};

}  // namespace tandem::io
