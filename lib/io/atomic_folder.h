#pragma once
#include <filesystem>

namespace tandem::io {

/// A folder that is filled under a temporary name, next to its final one: nothing appears there
/// before commit(), and the temporary folder is removed if the writer is destroyed without it.
class AtomicFolder {
 public:
  /// errors   kind usage: something of this name is there; kind input: cannot create
  explicit AtomicFolder(std::filesystem::path path);
  ~AtomicFolder();
  AtomicFolder(const AtomicFolder&) = delete;
  AtomicFolder& operator=(const AtomicFolder&) = delete;

  /// Where files are written meanwhile.
  const std::filesystem::path& temporary() const { return temporary_; }
  /// Gives the folder its final name.
  /// errors   as the constructor: something has taken the name
  void commit();

 private:
  std::filesystem::path path_, temporary_;  // temporary_: empty after commit
};

}  // namespace tandem::io
