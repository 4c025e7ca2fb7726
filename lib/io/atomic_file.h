#pragma once
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>

namespace tandem::io {

/// What becomes of a file that has the final name already.
enum class Existing : uint8_t { replaced, kept };

/// A file written under a temporary name in the folder of its final one: nothing appears under the
/// final name before commit(), and the temporary file is removed if the writer is destroyed without
/// it, or by the next writer of the same name where that one was killed. Each writer has its own
/// temporary file: when several write one name, even from different machines, the last commit wins
/// as a whole. Through a symbolic link the file that it names is written, and the link stays.
class AtomicFile {
 public:
  /// errors   kind input: cannot create (folder missing, read-only, no permission); `path` names
  ///          something other than a regular file, such as a folder, a pipe or a device
  /// existing   what commit() does with a file that has come into being since its caller looked
  explicit AtomicFile(const std::filesystem::path& path, Existing existing = Existing::replaced);
  ~AtomicFile();
  AtomicFile(const AtomicFile&) = delete;
  AtomicFile& operator=(const AtomicFile&) = delete;

  /// errors   kind input: no space left, quota, I/O error; says how far it got
  void write(std::span<const std::byte> bytes);
  void write(std::string_view text);
  /// Puts text in the place of what has been written from byte `begin` on.
  /// errors   as write
  void rewrite(size_t begin, std::string_view text);
  /// Syncs the data to the disk, then gives the file its final name.
  /// errors   as write; kind input: the name is taken by a file that is kept, and what other name
  ///          the data have now
  void commit();

 private:
  void put(size_t at, std::span<const std::byte> bytes);
  [[noreturn]] void fail(const char* action, int error_number) const;
  [[noreturn]] void keep_aside() const;

  std::filesystem::path path_, target_, temporary_;  // target_: path_ with its links followed
  Existing existing_;
  int fd_ = -1;
  int lock_ = -1;  // the same open file: its lock outlasts fd_
  size_t written_ = 0;
};

/// Removes what writers that were killed have left in a folder. No other program may write there.
void remove_unfinished(const std::filesystem::path& folder);

}  // namespace tandem::io
