#include "io/file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "base/check.h"
#include "base/error.h"

namespace tandem::io {
namespace {

/// Closes its descriptor on every way out.
struct Descriptor {
  int fd;
  ~Descriptor() {
    if (fd > 0) ::close(fd);
  }
};

Descriptor open_for_reading(const std::filesystem::path& path) {
  if (path == "-") return {STDIN_FILENO};
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) throw input_error(path.string(), "cannot open: {}", std::strerror(errno));
  struct stat info {};
  if (::fstat(fd, &info) == 0 && S_ISDIR(info.st_mode)) {
    ::close(fd);
    throw input_error(path.string(), "is a folder, expected a file");
  }
  return {fd};
}

}  // namespace

std::filesystem::path link_target(const std::filesystem::path& path) {
  constexpr int kMostLinks = 40;  // as many as Linux follows
  std::error_code failed;
  std::filesystem::path target = path;
  for (int i = 0; std::filesystem::is_symlink(std::filesystem::symlink_status(target, failed));
       ++i) {
    if (i == kMostLinks) throw input_error(path.string(), "is a link that leads nowhere");
    target = target.parent_path() / std::filesystem::read_symlink(target);
  }
  return target;
}

std::string read_file(const std::filesystem::path& path, size_t limit_bytes) {
  const Descriptor file = open_for_reading(path);
  std::string text;
  constexpr size_t kChunk = size_t{1} << 18;
  while (true) {
    const size_t used = text.size();
    text.resize(used + kChunk);
    const ssize_t n = ::read(file.fd, text.data() + used, kChunk);
    if (n < 0 && errno == EINTR) {
      text.resize(used);
      continue;
    }
    if (n < 0) throw input_error(path.string(), "cannot read: {}", std::strerror(errno));
    text.resize(used + static_cast<size_t>(n));
    if (n == 0) return text;
    if (text.size() > limit_bytes)
      throw input_error(path.string(), "larger than the {} bytes that this kind of file may have",
                        limit_bytes);
  }
}

MappedFile::MappedFile(const std::filesystem::path& path) : path_(path.string()) {
  Descriptor file = open_for_reading(path);
  struct stat info {};
  if (::fstat(file.fd, &info) != 0 || !S_ISREG(info.st_mode))
    throw input_error(path.string(), "is not a regular file");
  size_ = static_cast<size_t>(info.st_size);
  if (size_ == 0) return;
  void* p = ::mmap(nullptr, size_, PROT_READ, MAP_PRIVATE, file.fd, 0);
  if (p == MAP_FAILED) throw input_error(path.string(), "cannot map: {}", std::strerror(errno));
  data_ = static_cast<const std::byte*>(p);
  fd_ = std::exchange(file.fd, -1);
}

MappedFile::~MappedFile() {
  if (data_ != nullptr) ::munmap(const_cast<std::byte*>(data_), size_);
  const Descriptor closes{fd_};
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
               "{} bytes that are not all within {}", range.size(), path_);
  size_t done = 0;
  while (done < range.size()) {
    const ssize_t n = ::pread(fd_, static_cast<char*>(out) + done, range.size() - done,
                              static_cast<off_t>(range.data() - data_ + done));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) throw input_error(path_, "cannot read: {}", std::strerror(errno));
    if (n == 0)
      throw input_error(path_, "has become shorter: byte {} of {} is missing",
                        range.data() - data_ + done, size_)
          .hint("leave the file as it is while a run uses it");
    done += static_cast<size_t>(n);
  }
}

}  // namespace tandem::io
