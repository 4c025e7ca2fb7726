#pragma once
#include <cstddef>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>

namespace tandem::io {

/// A file written under a temporary name in the folder of its final one: nothing appears under the
/// final name before commit(), and the temporary file is removed if the writer is destroyed without
/// it. Each writer has its own temporary file: when several write one name, even from different
/// machines, the last commit wins as a whole. Through a symbolic link the file that it names is
/// written, and the link stays.
class AtomicFile {
 public:
  /// errors   kind input: cannot create (folder missing, read-only, no permission); `path` names
  ///          something other than a regular file, such as a folder, a pipe or a device
  explicit AtomicFile(const std::filesystem::path& path);
  ~AtomicFile();
  AtomicFile(const AtomicFile&) = delete;
  AtomicFile& operator=(const AtomicFile&) = delete;

  /// errors   kind input: no space left, quota, I/O error; says how far it got
  void write(std::span<const std::byte> bytes);
  void write(std::string_view text);
  /// Syncs the data to the disk, then gives the file its final name.
  void commit();

 private:
  [[noreturn]] void fail(const char* action, int error_number) const;

  std::filesystem::path path_, target_, temporary_;  // target_: path_ with its links followed
  int fd_ = -1;
  size_t written_ = 0;
};

/// Removes what writers that were killed have left in a folder. No other program may write there.
void remove_unfinished(const std::filesystem::path& folder);

}  // namespace tandem::io
