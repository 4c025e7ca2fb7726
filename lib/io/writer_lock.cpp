#include "io/writer_lock.h"

#include <fcntl.h>
#include <fmt/chrono.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <ctime>
#include <string_view>
#include <thread>

#include "base/error.h"
#include "io/file.h"

namespace tandem::io {
namespace {

namespace fs = std::filesystem;

constexpr auto kPause = std::chrono::milliseconds(100);  // between looks at a lock that is taken

fs::path lock_path(const fs::path& target) {
  std::error_code failed;
  fs::path path = fs::weakly_canonical(link_target(target), failed);
  if (failed) path = target;
  if (!path.has_filename()) path = path.parent_path();  // "a/b/"
  path += ".lock";
  return path;
}

/// The beginning of a file; empty if it cannot be read.
std::string text_of(int fd) {
  std::array<char, 512> text{};
  const ssize_t n = ::pread(fd, text.data(), text.size(), 0);
  return {text.data(), n > 0 ? static_cast<size_t>(n) : 0};
}

/// Whether a lock file's whole text is what WriterLock::sign writes.
bool is_signature(std::string_view text) {
  return text.starts_with("process ") && text.find(" since ") != std::string_view::npos &&
         text.ends_with("Z\n") && text.find('\n') == text.size() - 1;
}

}  // namespace

std::string host_name() {
  std::array<char, 256> name{};
  return ::gethostname(name.data(), name.size() - 1) == 0 ? name.data() : "this host";
}

WriterLock::WriterLock(const fs::path& target, const Waiting& waiting)
    : target_(target), path_(lock_path(target)) {
  bool noted = false;
  while (!try_lock()) {
    const std::string who = holder();
    if (!waiting.waits)
      throw input_error(target.string(), "is being written by {}", who)
          .hint("add --wait to start after it, or choose another output name");
    if (!noted && waiting.note) waiting.note(who);
    noted = true;
    poll(waiting.interrupted);
    std::this_thread::sleep_for(kPause);
  }
}

WriterLock::~WriterLock() {
  if (fd_ < 0) return;
  if (is_own_ && is_named()) ::unlink(path_.c_str());
  ::close(fd_);
}

bool WriterLock::try_lock() {
  for (;;) {
    is_own_ = true;
    fd_ = create();
    if (fd_ >= 0) return true;
    if (errno != EEXIST) {
      // A folder that is not there, or takes no files: who writes there finds that out.
      why_open_ = std::strerror(errno);
      return true;
    }
    fd_ = ::open(path_.c_str(), O_RDWR | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
    if (fd_ < 0 && errno == ENOENT) continue;
    if (fd_ < 0 && errno == ELOOP) refuse();
    if (fd_ < 0) {
      why_open_ = std::strerror(errno);
      return true;
    }
    const bool taken = ::flock(fd_, LOCK_EX | LOCK_NB) != 0;
    if (taken && errno != EWOULDBLOCK && errno != EINTR) {
      why_open_ = std::strerror(errno);  // a file system without locks
      is_own_ = false;
      return true;
    }
    struct stat info {};
    const bool is_file = ::fstat(fd_, &info) == 0 && S_ISREG(info.st_mode);
    const std::string text = text_of(fd_);
    const bool named = is_named(), foreign = !is_file || !(text.empty() || is_signature(text));
    // Of a lock that is taken, the text may be about to change.
    if (!taken && named && !foreign) {
      // An empty file is another program's way to lock: it serves, and stays as it is.
      is_own_ = !text.empty();
      if (is_own_) sign(fd_);
      return true;
    }
    ::close(std::exchange(fd_, -1));
    if (foreign && !taken && named) refuse();
    if (taken) return false;
    // Its holder has removed the file meanwhile: the lock on that one keeps no other away.
  }
}

int WriterLock::create() const {
  const fs::path folder = path_.has_parent_path() ? path_.parent_path() : ".";
  if (const int fd = ::open(folder.c_str(), O_TMPFILE | O_RDWR | O_CLOEXEC, 0666); fd >= 0) {
    sign(fd);
    const std::string nameless = fmt::format("/proc/self/fd/{}", fd);
    if (::flock(fd, LOCK_EX | LOCK_NB) == 0 &&
        ::linkat(AT_FDCWD, nameless.c_str(), AT_FDCWD, path_.c_str(), AT_SYMLINK_FOLLOW) == 0)
      return fd;
    const int why = errno;
    ::close(fd);
    errno = why;
    if (why == EEXIST) return -1;
  }
  // A file system without nameless files, or without locks.
  const int fd = ::open(path_.c_str(), O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0666);
  if (fd < 0) return -1;
  if (::flock(fd, LOCK_EX | LOCK_NB) == 0) {
    sign(fd);
    return fd;
  }
  const bool taken = errno == EWOULDBLOCK;  // by one that has found it before it was locked
  const int why = taken ? EEXIST : errno;
  if (!taken) ::unlink(path_.c_str());
  ::close(fd);
  errno = why;
  return -1;
}

bool WriterLock::is_named() const {
  struct stat ours {
  }, named{};
  return ::fstat(fd_, &ours) == 0 && ::lstat(path_.c_str(), &named) == 0 &&
         ours.st_ino == named.st_ino && ours.st_dev == named.st_dev;
}

void WriterLock::sign(int fd) const {
  const std::string text = fmt::format("process {} on {} since {:%Y-%m-%dT%H:%M:%S}Z\n", ::getpid(),
                                       host_name(), fmt::gmtime(std::time(nullptr)));
  // It is for people to read, and for later runs to know the file by; the lock holds without it.
  if (::ftruncate(fd, 0) != 0) return;
  if (::pwrite(fd, text.data(), text.size(), 0) == static_cast<ssize_t>(text.size())) return;
  [[maybe_unused]] const int ignored = ::ftruncate(fd, 0);  // a full disk: no half of it
}

std::string WriterLock::holder() const {
  const int fd = ::open(path_.c_str(), O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
  if (fd < 0) return "another process";
  const std::string text = text_of(fd);
  ::close(fd);
  // Not before it has signed, nor by someone else's file of that name.
  return is_signature(text) ? text.substr(0, text.size() - 1) : "another process";
}

void WriterLock::refuse() const {
  throw input_error(path_.string(),
                    "is needed as the lock file of {}, but was not written by tandem",
                    target_.string())
      .hint("choose another output name, or move this file away");
}

}  // namespace tandem::io
