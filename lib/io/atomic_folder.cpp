#include "io/atomic_folder.h"

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include <fcntl.h>
#include <sys/stat.h>

#include "base/error.h"

namespace tandem::io {
namespace {

Error taken(const std::filesystem::path& path) {
  return usage_error(path.string(), "already exists")
      .hint("give the name of a new folder, or remove this one first");
}

/// What the folder's files would have if they were made by others.
mode_t usual_mode() {
  const mode_t mask = ::umask(0);
  ::umask(mask);
  return 0777 & ~mask;
}

}  // namespace

AtomicFolder::AtomicFolder(std::filesystem::path path) : path_(std::move(path).lexically_normal()) {
  if (!path_.has_filename()) path_ = path_.parent_path();  // "a/b/"
  if (std::filesystem::exists(std::filesystem::symlink_status(path_))) throw taken(path_);
  std::string name = path_.string() + ".tmp-XXXXXX";
  if (::mkdtemp(name.data()) == nullptr)
    throw input_error(path_.string(), "cannot create the folder: {}", std::strerror(errno))
        .hint("its parent folder must exist and be writable");
  temporary_ = name;
  ::chmod(name.c_str(), usual_mode());
}

AtomicFolder::~AtomicFolder() {
  std::error_code code;
  if (!temporary_.empty()) std::filesystem::remove_all(temporary_, code);
}

void AtomicFolder::commit() {
  if (::renameat2(AT_FDCWD, temporary_.c_str(), AT_FDCWD, path_.c_str(), RENAME_NOREPLACE) != 0) {
    // Some file systems have no such renaming.
    if (errno == EEXIST) throw taken(path_);
    std::error_code code;
    std::filesystem::rename(temporary_, path_, code);
    if (code)
      throw input_error(path_.string(), "cannot rename the finished folder: {}", code.message());
  }
  temporary_.clear();
}

}  // namespace tandem::io
