#include "io/file.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "base/check.h"
#include "base/error.h"
#include "io/claimed_files.h"

namespace tandem::io {
namespace {

/// Closes its descriptor on every way out.
struct Descriptor {
  int fd;
  explicit Descriptor(int number) : fd(number) {}
  Descriptor(Descriptor&& other) noexcept : fd(std::exchange(other.fd, -1)) {}
  ~Descriptor() {
    if (fd > 0) ::close(fd);
  }
};

Interrupted interrupted_reading;

enum class Role : uint8_t { input, own_output };

/// Never waits: a pipe without a writer opens at once, and its reader finds nothing yet.
Descriptor open_for_reading(const std::filesystem::path& path, Role role) {
  if (path == "-") return Descriptor(STDIN_FILENO);
  Descriptor file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (file.fd < 0) throw input_error(path.string(), "cannot open: {}", std::strerror(errno));
  struct stat info {};
  if (::fstat(file.fd, &info) == 0 && S_ISDIR(info.st_mode))
    throw input_error(path.string(), "is a folder, expected a file");
  if (role == Role::input) note_input(path, file.fd);
  return file;
}

/// errors   kind input: a pipe or a device
struct stat regular_file(const std::filesystem::path& path, int fd) {
  struct stat info {};
  if (::fstat(fd, &info) != 0 || !S_ISREG(info.st_mode))
    throw input_error(path.string(), "is not a regular file");
  return info;
}

/// Waits until there is something to read, or the end.
/// errors   kind interrupted
void await_bytes(int fd) {
  constexpr int kMilliseconds = 100;  // between looks for an interruption
  pollfd stream{fd, POLLIN, 0};
  while (::poll(&stream, 1, kMilliseconds) <= 0) poll(interrupted_reading);
}

std::string read_all(const std::filesystem::path& path, const Descriptor& file,
                     size_t limit_bytes) {
  std::string text;
  constexpr size_t kChunk = size_t{1} << 18;
  while (true) {
    await_bytes(file.fd);
    const size_t used = text.size();
    text.resize(used + kChunk);
    const ssize_t n = ::read(file.fd, text.data() + used, kChunk);
    if (n < 0 && (errno == EINTR || errno == EAGAIN)) {
      text.resize(used);
      continue;
    }
    if (n < 0) throw input_error(path.string(), "cannot read: {}", std::strerror(errno));
    text.resize(used + static_cast<size_t>(n));
    if (n == 0) return text;
    if (text.size() > limit_bytes)
      throw input_error(path.string(), "is larger than {} bytes, the limit for this kind of file",
                        limit_bytes);
  }
}

}  // namespace

std::filesystem::path link_target(const std::filesystem::path& path) {
  constexpr int kMostLinks = 40;  // as many as Linux follows
  std::error_code failed;
  std::filesystem::path target = path;
  for (int i = 0; std::filesystem::is_symlink(std::filesystem::symlink_status(target, failed));
       ++i) {
    if (i == kMostLinks) throw input_error(path.string(), "is a symbolic link in a loop");
    target = target.parent_path() / std::filesystem::read_symlink(target);
  }
  return target;
}

void interrupt_reading_by(Interrupted interrupted) { interrupted_reading = std::move(interrupted); }

std::string read_file(const std::filesystem::path& path, size_t limit_bytes) {
  return read_all(path, open_for_reading(path, Role::input), limit_bytes);
}

std::string read_regular_file(const std::filesystem::path& path, size_t limit_bytes) {
  const Descriptor file = open_for_reading(path, Role::input);
  regular_file(path, file.fd);
  return read_all(path, file, limit_bytes);
}

std::string read_own_output(const std::filesystem::path& path) {
  return read_all(path, open_for_reading(path, Role::own_output), size_t{1} << 30);
}

MappedFile::MappedFile(const std::filesystem::path& path) : path_(path.string()) {
  Descriptor file = open_for_reading(path, Role::input);
  size_ = static_cast<size_t>(regular_file(path, file.fd).st_size);
  if (size_ == 0) return;
  void* p = ::mmap(nullptr, size_, PROT_READ, MAP_PRIVATE, file.fd, 0);
  if (p == MAP_FAILED) throw input_error(path.string(), "cannot map: {}", std::strerror(errno));
  data_ = static_cast<const std::byte*>(p);
  fd_ = std::exchange(file.fd, -1);
}

MappedFile::~MappedFile() {
  if (data_ != nullptr) ::munmap(const_cast<std::byte*>(data_), size_);
  const Descriptor closes(fd_);
}

MappedFile::MappedFile(MappedFile&& other) noexcept
    : path_(std::move(other.path_)),
      fd_(std::exchange(other.fd_, -1)),
      data_(std::exchange(other.data_, nullptr)),
      size_(std::exchange(other.size_, 0)) {}

MappedFile& MappedFile::operator=(MappedFile&& other) noexcept {
  std::swap(path_, other.path_);
  std::swap(fd_, other.fd_);
  std::swap(data_, other.data_);
  std::swap(size_, other.size_);
  return *this;
}

void MappedFile::drop_pages() const {
  if (data_ != nullptr) ::madvise(const_cast<std::byte*>(data_), size_, MADV_DONTNEED);
}

void MappedFile::read(std::span<const std::byte> range, void* out) const {
  if (range.empty()) return;
  TANDEM_CHECK(range.data() >= data_ && range.data() + range.size() <= data_ + size_,
               "{} bytes are not all within {}", range.size(), path_);
  size_t done = 0;
  while (done < range.size()) {
    const ssize_t n = ::pread(fd_, static_cast<char*>(out) + done, range.size() - done,
                              static_cast<off_t>(range.data() - data_ + done));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) throw input_error(path_, "cannot read: {}", std::strerror(errno));
    if (n == 0)
      throw input_error(path_, "was truncated during the run: byte {} of {} is missing",
                        range.data() - data_ + done, size_)
          .hint("do not change the file while a run reads it");
    done += static_cast<size_t>(n);
  }
}

}  // namespace tandem::io
