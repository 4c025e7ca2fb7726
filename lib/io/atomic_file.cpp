#include "io/atomic_file.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstring>

#include "base/check.h"
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
constexpr size_t kSuffixDigits = 16;

/// Creates a file that no other writer has, on this machine or on another that shares the folder,
/// and whose name cannot be guessed; with the system's lock on it, which says that its writer
/// lives. Returns its descriptor; below 0: errno says why.
int create_temporary(const std::filesystem::path& target, std::filesystem::path& created) {
  constexpr int kTries = 100;  // names of 64 random bits: one does
  int fd = -1;
  for (int i = 0; i < kTries; ++i) {
    uint64_t suffix = 0;
    if (::getrandom(&suffix, sizeof suffix, 0) != sizeof suffix) return -1;
    created = target;
    created += fmt::format("{}{:0{}x}", kUnfinished, suffix, kSuffixDigits);
    fd = ::open(created.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0666);
    if (fd < 0 && errno == EEXIST) continue;
    if (fd < 0) break;
    // Another writer may have found it before it had its lock, and remove it.
    const bool taken = ::flock(fd, LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK;
    struct stat info {};
    if (!taken && (::fstat(fd, &info) != 0 || info.st_nlink > 0)) break;
    ::close(std::exchange(fd, -1));
  }
  return fd;
}

/// Of a file that is being written, or of one whose writer was killed.
bool is_unfinished(const std::string& name) {
  const size_t at = name.rfind(kUnfinished);
  return at != std::string::npos && name.size() == at + kUnfinished.size() + kSuffixDigits &&
         name.find_first_not_of("0123456789abcdef", at + kUnfinished.size()) == std::string::npos;
}

/// Removes what writers of this name have left that were killed: the system has given up their
/// locks. Where it has no locks, nothing is removed.
void remove_abandoned(const std::filesystem::path& target) {
  const std::string of_target = target.filename().string() + std::string(kUnfinished);
  std::error_code code;
  for (const auto& entry : std::filesystem::directory_iterator(folder_of(target), code)) {
    const std::string name = entry.path().filename().string();
    if (name.size() != of_target.size() + kSuffixDigits || !name.starts_with(of_target) ||
        !is_unfinished(name))
      continue;
    const int fd = ::open(entry.path().c_str(), O_WRONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
    if (fd < 0) continue;
    struct stat info {};
    if (::fstat(fd, &info) == 0 && S_ISREG(info.st_mode) && ::flock(fd, LOCK_EX | LOCK_NB) == 0)
      ::unlink(entry.path().c_str());
    ::close(fd);
  }
}

/// Renames a file unless the new name is taken. Returns 0 or an error number, EEXIST if it is.
int rename_to_free(const std::filesystem::path& from, const std::filesystem::path& to) {
  if (::renameat2(AT_FDCWD, from.c_str(), AT_FDCWD, to.c_str(), RENAME_NOREPLACE) == 0) return 0;
  if (errno != EINVAL && errno != ENOSYS) return errno;
  // A file system without such renaming, as some network ones: no link takes a name that is there.
  if (::link(from.c_str(), to.c_str()) == 0) {
    ::unlink(from.c_str());
    return 0;
  }
  if (errno == EEXIST) return errno;
  // Without links, too, as FAT: only a moment is left in which the name can be taken.
  struct stat info {};
  if (::lstat(to.c_str(), &info) == 0) return EEXIST;
  return ::rename(from.c_str(), to.c_str()) == 0 ? 0 : errno;
}

Error creation_error(const std::filesystem::path& path, const std::filesystem::path& folder,
                     int error_number) {
  Error error = input_error(path.string(), "cannot create: {}", std::strerror(error_number));
  const long longest = ::pathconf(folder.c_str(), _PC_NAME_MAX);
  const size_t added = kUnfinished.size() + kSuffixDigits;
  if (error_number == ENAMETOOLONG && longest > 0)
    return std::move(error).hint(fmt::format(
        "choose a name of at most {} bytes: the temporary file's name is {} bytes longer",
        static_cast<size_t>(longest) - added, added));
  return std::move(error).hint(
      fmt::format("the folder '{}' must exist and be writable", folder.string()));
}

}  // namespace

AtomicFile::AtomicFile(const std::filesystem::path& path, Existing existing)
    : path_(path), existing_(existing) {
  std::error_code failed;
  const std::filesystem::file_status status = std::filesystem::status(path, failed);
  if (std::filesystem::exists(status) && !std::filesystem::is_regular_file(status))
    throw input_error(path.string(), "is not a regular file and cannot be replaced")
        .hint("give the name of a regular file or of a new one");
  target_ = link_target(path);
  remove_abandoned(target_);
  fd_ = create_temporary(target_, temporary_);
  if (fd_ < 0) throw creation_error(path, folder_of(target_), errno);
  lock_ = ::fcntl(fd_, F_DUPFD_CLOEXEC, 0);
}

AtomicFile::~AtomicFile() {
  if (lock_ >= 0) ::close(lock_);
  if (fd_ < 0) return;
  ::close(fd_);
  ::unlink(temporary_.c_str());
}

void AtomicFile::put(size_t at, std::span<const std::byte> bytes) {
  constexpr size_t kLargest = size_t{1} << 30;  // Linux moves at most 2 GiB a call
  while (!bytes.empty()) {
    const ssize_t n =
        ::pwrite(fd_, bytes.data(), std::min(bytes.size(), kLargest), static_cast<off_t>(at));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) fail("cannot write", errno);
    at += static_cast<size_t>(n);
    written_ = std::max(written_, at);
    bytes = bytes.subspan(static_cast<size_t>(n));
  }
}

void AtomicFile::write(std::span<const std::byte> bytes) { put(written_, bytes); }

void AtomicFile::write(std::string_view text) {
  write(std::as_bytes(std::span(text.data(), text.size())));
}

void AtomicFile::rewrite(size_t begin, std::string_view text) {
  TANDEM_CHECK(begin + text.size() <= written_,
               "cannot rewrite {} bytes from {}: only {} are written", text.size(), begin,
               written_);
  put(begin, std::as_bytes(std::span(text.data(), text.size())));
}

void AtomicFile::commit() {
  // Deferred write errors (quota, network file systems) show up here.
  if (::fsync(fd_) != 0 && errno != EINVAL) fail("cannot write", errno);
  if (::close(std::exchange(fd_, -1)) != 0) {
    const int error_number = errno;
    ::unlink(temporary_.c_str());
    fail("cannot write", error_number);
  }
  const bool keeps = existing_ == Existing::kept;
  const int failed = keeps ? rename_to_free(temporary_, target_)
                           : (::rename(temporary_.c_str(), target_.c_str()) == 0 ? 0 : errno);
  if (keeps && failed == EEXIST) keep_aside();
  if (failed != 0) {
    ::unlink(temporary_.c_str());
    fail("cannot rename the finished file", failed);
  }
  sync_folder(folder_of(target_));
}

void AtomicFile::keep_aside() const {
  constexpr int kMostNames = 1000;
  std::filesystem::path aside;
  int failed = EEXIST;
  for (int i = 1; failed == EEXIST && i <= kMostNames; ++i) {
    aside = target_;
    aside += fmt::format(".kept-{}", i);
    failed = rename_to_free(temporary_, aside);
  }
  if (failed != 0) {
    ::unlink(temporary_.c_str());
    fail("cannot rename the finished file", failed);
  }
  sync_folder(folder_of(target_));
  throw input_error(
      path_.string(),
      "this file appeared during the run and was not overwritten: the result is in '{}'",
      aside.string())
      .hint("rename one of the two files, or use --overwrite next time");
}

void AtomicFile::fail(const char* action, int error_number) const {
  Error error = input_error(path_.string(), "{} after {} bytes: {}", action, written_,
                            std::strerror(error_number));
  const bool is_full = error_number == ENOSPC || error_number == EDQUOT;
  throw std::move(error).hint(
      is_full ? "free some disk space or write to another disk; no partial file was left"
              : "no partial file was left");
}

void remove_unfinished(const std::filesystem::path& folder) {
  std::error_code code;
  for (const auto& entry : std::filesystem::directory_iterator(folder, code))
    if (is_unfinished(entry.path().filename().string()))
      std::filesystem::remove(entry.path(), code);
}

}  // namespace tandem::io
