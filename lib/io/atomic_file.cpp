#include "io/atomic_file.h"

#include <fcntl.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstring>

#include "base/error.h"
#include "io/file.h"

namespace tandem::io {
namespace {

/// Makes a rename survive a power cut. Some file systems refuse to sync a folder; the data
/// themselves are safe by then, so that is no error.
void sync_folder(const std::filesystem::path& folder) {
  const int fd = ::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (fd < 0) return;
  ::fsync(fd);
  ::close(fd);
}

std::filesystem::path folder_of(const std::filesystem::path& path) {
  return path.has_parent_path() ? path.parent_path() : std::filesystem::path(".");
}

/// Follows a file's name while it is written, before 16 hex digits.
constexpr std::string_view kUnfinished = ".tmp-";
constexpr size_t kDigits = 16;

/// Creates a file that no other writer has, on this machine or on another that shares the folder,
/// and whose name cannot be guessed. Returns its descriptor; below 0: errno says why.
int create_temporary(const std::filesystem::path& target, std::filesystem::path& created) {
  constexpr int kTries = 100;  // names of 64 random bits: one does
  int fd = -1;
  for (int i = 0; i < kTries; ++i) {
    uint64_t suffix = 0;
    if (::getrandom(&suffix, sizeof suffix, 0) != sizeof suffix) return -1;
    created = target;
    created += fmt::format("{}{:0{}x}", kUnfinished, suffix, kDigits);
    fd = ::open(created.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0666);
    if (fd >= 0 || errno != EEXIST) break;
  }
  return fd;
}

}  // namespace

AtomicFile::AtomicFile(const std::filesystem::path& path) : path_(path) {
  std::error_code failed;
  const std::filesystem::file_status status = std::filesystem::status(path, failed);
  if (std::filesystem::exists(status) && !std::filesystem::is_regular_file(status))
    throw input_error(path.string(), "is no regular file, so no file can take its place")
        .hint("name a file, or one that is not there yet");
  target_ = link_target(path);
  fd_ = create_temporary(target_, temporary_);
  if (fd_ < 0)
    throw input_error(path.string(), "cannot create: {}", std::strerror(errno))
        .hint(
            fmt::format("the folder '{}' must exist and be writable", folder_of(target_).string()));
}

AtomicFile::~AtomicFile() {
  if (fd_ < 0) return;
  ::close(fd_);
  ::unlink(temporary_.c_str());
}

void AtomicFile::write(std::span<const std::byte> bytes) {
  constexpr size_t kLargest = size_t{1} << 30;  // Linux moves at most 2 GiB a call
  while (!bytes.empty()) {
    const ssize_t n = ::write(fd_, bytes.data(), std::min(bytes.size(), kLargest));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) fail("cannot write", errno);
    written_ += static_cast<size_t>(n);
    bytes = bytes.subspan(static_cast<size_t>(n));
  }
}

void AtomicFile::write(std::string_view text) {
  write(std::as_bytes(std::span(text.data(), text.size())));
}

void AtomicFile::commit() {
  // Deferred write errors (quota, network file systems) show up here.
  if (::fsync(fd_) != 0 && errno != EINVAL) fail("cannot write", errno);
  if (::close(std::exchange(fd_, -1)) != 0) {
    const int error_number = errno;
    ::unlink(temporary_.c_str());
    fail("cannot write", error_number);
  }
  if (::rename(temporary_.c_str(), target_.c_str()) != 0) {
    const int error_number = errno;
    ::unlink(temporary_.c_str());
    fail("cannot rename the finished file", error_number);
  }
  sync_folder(folder_of(target_));
}

void AtomicFile::fail(const char* action, int error_number) const {
  Error error = input_error(path_.string(), "{} after {} bytes: {}", action, written_,
                            std::strerror(error_number));
  const bool is_full = error_number == ENOSPC || error_number == EDQUOT;
  throw std::move(error).hint(is_full
                                  ? "free some disk space or write to another disk; nothing was "
                                    "left under the final name"
                                  : "nothing was left under the final name");
}

void remove_unfinished(const std::filesystem::path& folder) {
  std::error_code code;
  for (const auto& entry : std::filesystem::directory_iterator(folder, code)) {
    const std::string name = entry.path().filename().string();
    const size_t at = name.rfind(kUnfinished);
    if (at == std::string::npos || name.size() != at + kUnfinished.size() + kDigits) continue;
    if (name.find_first_not_of("0123456789abcdef", at + kUnfinished.size()) == std::string::npos)
      std::filesystem::remove(entry.path(), code);
  }
}

}  // namespace tandem::io
