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

std::string host_name() {
  std::array<char, 256> name{};
  return ::gethostname(name.data(), name.size() - 1) == 0 ? name.data() : "this host";
}

}  // namespace

WriterLock::WriterLock(const fs::path& target, const Waiting& waiting) : path_(lock_path(target)) {
  bool noted = false;
  while (!try_lock()) {
    const std::string who = holder();
    if (!waiting.waits)
      throw input_error(target.string(), "is being written by {}", who)
          .hint("--wait begins when that has ended; or choose another name");
    if (!noted && waiting.note) waiting.note(who);
    noted = true;
    poll(waiting.interrupted);
    std::this_thread::sleep_for(kPause);
  }
}

WriterLock::~WriterLock() {
  if (fd_ < 0) return;
  ::unlink(path_.c_str());
  ::close(fd_);
}

bool WriterLock::try_lock() {
  for (;;) {
    fd_ = ::open(path_.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0666);
    if (fd_ < 0) {
      // A folder that is not there, or takes no files: who writes there finds that out.
      why_open_ = std::strerror(errno);
      return true;
    }
    const bool taken = ::flock(fd_, LOCK_EX | LOCK_NB) != 0;
    if (taken && errno != EWOULDBLOCK && errno != EINTR) {
      why_open_ = std::strerror(errno);  // a file system without locks
      return true;
    }
    struct stat ours {
    }, named{};
    const bool is_named = ::fstat(fd_, &ours) == 0 && ::stat(path_.c_str(), &named) == 0 &&
                          ours.st_ino == named.st_ino && ours.st_dev == named.st_dev;
    if (!taken && is_named) break;
    ::close(std::exchange(fd_, -1));
    if (taken) return false;
    // Its holder has removed the file meanwhile: the lock on that one keeps no other away.
  }
  sign();
  return true;
}

void WriterLock::sign() const {
  const std::string text = fmt::format("process {} on {} since {:%Y-%m-%dT%H:%M:%S}Z\n", ::getpid(),
                                       host_name(), fmt::gmtime(std::time(nullptr)));
  // It is for people to read: without it the lock holds as well.
  [[maybe_unused]] bool written = ::ftruncate(fd_, 0) == 0;
  written = ::pwrite(fd_, text.data(), text.size(), 0) == static_cast<ssize_t>(text.size());
}

std::string WriterLock::holder() const {
  std::array<char, 512> text{};
  const int fd = ::open(path_.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) return "another process";
  const ssize_t n = ::pread(fd, text.data(), text.size(), 0);
  ::close(fd);
  const std::string line(text.data(), n > 0 ? static_cast<size_t>(n) : 0);
  // Not before it has signed, nor by someone else's file of that name.
  return line.starts_with("process ") && line.ends_with('\n') ? line.substr(0, line.find('\n'))
                                                              : "another process";
}

}  // namespace tandem::io
