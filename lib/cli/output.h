#pragma once
#include <filesystem>
#include <memory>
#include <string>
#include <string_view>

#include "base/clock.h"
#include "cli/terminal.h"
#include "io/atomic_file.h"

namespace tandem::cli {

/// Standard output, the result and nothing else. Flushes with each piece on a terminal, otherwise
/// at line ends and after 50 ms, and before each message of the terminal.
/// errors   throws BrokenPipe when the reader is gone; kind input when the disk is full
class Output {
 public:
  explicit Output(Terminal& terminal);
  ~Output();
  Output(const Output&) = delete;
  Output& operator=(const Output&) = delete;

  void write(std::string_view piece);
  void line(std::string_view text);
  void flush();

  /// Nothing is written from now on, here or to result files: rank 0 writes.
  void mute() { muted_ = true; }
  bool muted() const { return muted_; }
  /// A line on standard error.
  void note(std::string_view text) { terminal_.note(text); }

  void set_color(Color color) { color_on_ = wants_color(color, is_tty_); }
  /// Text in the colour of a code such as 32, where colours are shown.
  std::string painted(std::string_view text, std::string_view code) const {
    return cli::painted(text, code, color_on_);
  }

 private:
  /// Writes the buffer as far as that works; returns the error code.
  int write_buffer();
  /// Terminal::settle_by
  bool settle();

  Terminal& terminal_;
  bool is_tty_, is_pipe_, shares_screen_, color_on_ = false, muted_ = false;
  bool line_open_ = false;  // the last byte written ends no line
  bool unread_ = false;     // bytes were written since settle()
  int failed_ = 0;          // error code of a write that flush() still has to report
  std::string buffer_;
  Stopwatch since_flush_;
};

enum class FileMode : uint8_t { create, overwrite, append };

constexpr io::Existing existing_in(FileMode mode) {
  return mode == FileMode::create ? io::Existing::kept : io::Existing::replaced;
}

/// Where a tool's result goes: standard output, a file that appears when complete, or lines added
/// to an existing file. A target that is no regular file (/dev/null, a pipe) is written directly.
class ResultFile {
 public:
  /// An empty path or "-" means standard output. Where that is muted, nothing is written.
  /// A pipe without a reader is waited for.
  /// errors   kind usage: the file exists and mode is create, or the run reads it; kind input:
  ///          cannot be written; kind interrupted
  ResultFile(const std::filesystem::path& path, FileMode mode, Output& out);
  ~ResultFile();
  ResultFile(const ResultFile&) = delete;
  ResultFile& operator=(const ResultFile&) = delete;

  /// `text` ends with a newline; an appended record is written whole or not at all.
  void write(std::string_view text);
  /// Gives a new file its name. Without it no file is left.
  /// errors   as AtomicFile's; kind input: standard output is closed or full
  void commit();

 private:
  void write_direct(std::string_view text);

  std::filesystem::path path_;
  Output& out_;
  std::unique_ptr<io::AtomicFile> atomic_;
  int fd_ = -1;  // written directly
};

/// Says that a result will go there (io/claimed_files.h).
/// errors   kind usage: a folder; a file that the run reads; with mode create any regular file
void claim_result(const std::filesystem::path& path, FileMode mode);

/// Says that a whole file will go there, and finds out before the work what would stop it.
/// errors   those of claim_result if mode is create; kind usage: a file that the run reads; kind
///          input: cannot be created, or the name of something that is no regular file
void check_new_file(const std::filesystem::path& path, FileMode mode);

}  // namespace tandem::cli
