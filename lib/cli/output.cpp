#include "cli/output.h"

#include <fcntl.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstring>
#include <exception>
#include <thread>
#include <utility>

#include "base/interrupt.h"
#include "cli/signals.h"
#include "io/claimed_files.h"

namespace tandem::cli {
namespace {

namespace fs = std::filesystem;

constexpr double kFlushSeconds = 0.05;
constexpr size_t kFlushBytes = size_t{1} << 16;

Error write_error(const std::string& name, const char* action, int code) {
  const char* remedy = "choose a file in an existing folder with write permission";
  if (code == EBADF) remedy = "standard output is closed: leave it open, or name a file with -o";
  if (code == EFBIG) remedy = "raise the limit on the size of files (ulimit -f)";
  if (code == ENOSPC || code == EDQUOT) remedy = "free some disk space, or write to another disk";
  return input_error(name, "cannot {}: {}", action, std::strerror(code)).hint(remedy);
}

/// The error code, or 0 when all bytes were written.
int write_all(int fd, std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t n = ::write(fd, bytes.data(), bytes.size());
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return errno;
    bytes.remove_prefix(static_cast<size_t>(n));
  }
  return 0;
}

bool is_standard_output(const struct stat& other) {
  struct stat ours {};
  return ::fstat(STDOUT_FILENO, &ours) == 0 && other.st_dev == ours.st_dev &&
         other.st_ino == ours.st_ino;
}

/// Whether a path such as /dev/stdout leads to the file that standard output goes to.
bool is_standard_output(const fs::path& path) {
  struct stat named {};
  return ::stat(path.c_str(), &named) == 0 && is_standard_output(named);
}

bool stdout_is_pipe() {
  struct stat ours {};
  return ::fstat(STDOUT_FILENO, &ours) == 0 && S_ISFIFO(ours.st_mode);
}

bool stderr_is_standard_output() {
  struct stat named {};
  return ::fstat(STDERR_FILENO, &named) == 0 && is_standard_output(named);
}

/// A pipe or a device. A pipe without a reader is waited for in a way that a signal ends. Returns
/// its descriptor; below 0: errno says why.
int open_special(const fs::path& path, Output& out) {
  constexpr auto kPause = std::chrono::milliseconds(50);
  bool noted = false;
  for (;;) {
    const int fd = ::open(path.c_str(), O_WRONLY | O_NONBLOCK | O_CLOEXEC);
    if (fd >= 0) ::fcntl(fd, F_SETFL, 0);  // writes wait
    if (fd >= 0 || errno != ENXIO || !fs::is_fifo(path)) return fd;
    if (!std::exchange(noted, true))
      out.note(fmt::format("{}: waiting for a reader of this pipe", path.string()));
    poll([] { return interrupted() != 0; });
    std::this_thread::sleep_for(kPause);
  }
}

}  // namespace

Output::Output(Terminal& terminal)
    : terminal_(terminal),
      is_tty_(::isatty(STDOUT_FILENO) == 1),
      is_pipe_(stdout_is_pipe()),
      shares_screen_(stderr_is_standard_output()) {
  terminal.settle_by([this] { return settle(); });
}

Output::~Output() {
  // Reached with bytes only while an error is on its way out; a second one would say nothing new.
  if (std::uncaught_exceptions() > 0 && settle()) write_all(STDOUT_FILENO, "\n");
  terminal_.settle_by({});
}

void Output::write(std::string_view piece) {
  if (muted_) return;
  buffer_ += piece;
  if (is_tty_ || piece.find('\n') != std::string_view::npos || buffer_.size() >= kFlushBytes ||
      since_flush_.seconds() >= kFlushSeconds)
    flush();
}

void Output::line(std::string_view text) { write(std::string(text) + '\n'); }

void Output::flush() {
  since_flush_.restart();
  if (is_tty_ && !buffer_.empty()) terminal_.clear_progress();
  const int rest = write_buffer(), earlier = std::exchange(failed_, 0);
  const int code = earlier != 0 ? earlier : rest;
  if (code == EPIPE) throw BrokenPipe{};
  if (code != 0) throw write_error("standard output", "write", code);
}

int Output::write_buffer() {
  if (buffer_.empty()) return 0;
  const std::string bytes = std::exchange(buffer_, {});
  answered();
  line_open_ = bytes.back() != '\n';
  const int code = write_all(STDOUT_FILENO, bytes);
  unread_ = code == 0;
  return code;
}

bool Output::settle() {
  if (const int code = write_buffer(); code != 0 && failed_ == 0) failed_ = code;
  if (shares_screen_) return std::exchange(line_open_, false) && !answered();
  if (!std::exchange(unread_, false) || !is_pipe_) return false;
  // The reader, such as tee, may show the result on the screen that the message goes to: it gets
  // the time to read all and to pass it on.
  constexpr auto kPause = std::chrono::milliseconds(1), kToPassOn = 5 * kPause;
  constexpr int kMostPauses = 250;
  int n = 0;
  for (int i = 0; i < kMostPauses && ::ioctl(STDOUT_FILENO, FIONREAD, &n) == 0 && n > 0; ++i)
    std::this_thread::sleep_for(kPause);
  std::this_thread::sleep_for(kToPassOn);
  return false;
}

void claim_result(const fs::path& path, FileMode mode) {
  std::error_code failed;
  const fs::file_status status = fs::status(path, failed);
  if (fs::is_directory(status))
    throw usage_error(path.string(), "expected a file name, found a folder");
  io::claim_output(path);
  if (mode != FileMode::create || !fs::is_regular_file(status)) return;
  throw usage_error(path.string(), "the output file exists already")
      .hint(is_standard_output(path) ? "-o - writes to standard output"
                                     : "replace it with --overwrite, or choose another name");
}

void check_new_file(const fs::path& path, FileMode mode) {
  if (mode == FileMode::create)
    claim_result(path, mode);
  else
    io::claim_output(path);
  const io::AtomicFile trial(path);
}

ResultFile::ResultFile(const fs::path& path, FileMode mode, Output& out) : path_(path), out_(out) {
  if (path.empty() || path == "-" || out.muted()) return;
  claim_result(path, mode);
  std::error_code failed;
  const fs::file_status status = fs::status(path, failed);
  const bool special = fs::exists(status) && !fs::is_regular_file(status);
  if (mode != FileMode::append && !special) {
    atomic_ = std::make_unique<io::AtomicFile>(path, existing_in(mode));
    return;
  }
  fd_ = special ? open_special(path, out)
                : ::open(path.c_str(), O_RDWR | O_CREAT | O_APPEND | O_CLOEXEC, 0666);
  if (fd_ < 0) throw write_error(path_.string(), "open", errno);
  // A torn last line of an earlier crash is closed, so that new records stand on their own.
  const off_t size = special ? 0 : ::lseek(fd_, 0, SEEK_END);
  char last = '\n';
  if (size > 0 && ::pread(fd_, &last, 1, size - 1) == 1 && last != '\n') write_direct("\n");
}

ResultFile::~ResultFile() {
  if (fd_ >= 0) ::close(fd_);
}

void ResultFile::write(std::string_view text) {
  if (atomic_)
    atomic_->write(text);
  else if (fd_ >= 0)
    write_direct(text);
  else
    out_.write(text);
}

void ResultFile::write_direct(std::string_view text) {
  const off_t before = ::lseek(fd_, 0, SEEK_END);  // -1 for pipes
  const int code = write_all(fd_, text);
  if (code == 0) return;
  // Half a record is taken back; if even that fails, the write error is reported.
  [[maybe_unused]] const int ignored = before >= 0 ? ::ftruncate(fd_, before) : 0;
  throw write_error(path_.string(), "write", code);
}

void ResultFile::commit() {
  if (atomic_) atomic_->commit();
  atomic_.reset();
  if (fd_ < 0 && path_.empty()) out_.flush();
}

}  // namespace tandem::cli
