#pragma once
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "base/clock.h"
#include "base/error.h"
#include "decode/run_context.h"

namespace tandem::cli {

enum class Color : uint8_t { automatic, always, never };

/// Whether text on a stream is dressed in colours.
bool wants_color(Color color, bool is_tty);
/// Text in the colour of a code such as 32, or as it is.
std::string painted(std::string_view text, std::string_view code, bool color_on);

/// Columns of the window that shows a stream; 80 if there is none.
size_t window_columns(int fd);

/// A line of progress, cut to `columns`: rates go first, the last of them before the others, then
/// other details, then the time left, then the end of the head.
std::string fitted(std::vector<std::string> parts, size_t columns);

/// Standard error: progress, notes, warnings and errors. Knows whether it is a terminal, and keeps
/// the progress line out of the way of everything else.
class Terminal {
 public:
  explicit Terminal(std::string tool);
  ~Terminal();
  Terminal(const Terminal&) = delete;
  Terminal& operator=(const Terminal&) = delete;

  void set_color(Color color);
  void set_progress(bool on) { progress_on_ = on; }
  /// -1 quiet, 0 normal, 1 verbose, 2 debug.
  void set_verbosity(int level) { verbosity_ = level; }
  int verbosity() const { return verbosity_; }
  bool is_tty() const { return is_tty_; }

  // Names of files may hold any bytes; messages are lines of printable text (io::escape_controls).

  /// A line or more, shown from the given verbosity on.
  void note(std::string_view text, int level = 0);
  /// The same at verbosity 0, once for each text.
  void note_once(const std::string& text);
  /// `<tool>: warning: text`, once for each text.
  void warn(const std::string& text);
  /// `<tool>: error: where: what`, then the hint.
  void error(const Error& error);
  /// Repeats the warnings of a run that printed much in between.
  void repeat_warnings();
  const std::vector<std::string>& warnings() const { return warnings_; }

  /// Redraws the progress line, cut to the window; off a terminal prints a plain line now and then.
  void show_progress(std::vector<std::string> parts, bool force = false);
  void clear_progress();
  /// Called before a message: writes the result so far, and returns whether its last line is open
  /// on the same screen.
  void settle_by(std::function<bool()> settle) { settle_ = std::move(settle); }

 private:
  /// A message, from the beginning of a line.
  void print(std::string_view text);
  std::string painted(std::string_view text, std::string_view code) const {
    return cli::painted(text, code, color_on_);
  }

  std::string tool_;
  bool is_tty_, color_on_, progress_on_ = true, line_shown_ = false;
  int verbosity_ = 0;
  std::function<bool()> settle_;
  std::vector<std::string> warnings_, notes_;
  Stopwatch since_redraw_, since_plain_line_;
};

/// Progress of one phase: `prefill  61% 59.9k/98.3k tok  11.7k tok/s  ETA 3s`.
class Progress final : public decode::ProgressLine {
 public:
  /// begun   done before this process, which says nothing of its rate
  Progress(Terminal& terminal, std::string label, double total, std::string unit, double begun = 0);
  ~Progress() override { terminal_.clear_progress(); }
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  void update(double done, const std::vector<std::string>& details = {}) override;
  /// False once a signal has asked for an end.
  bool go_on(double done) override;

 private:
  Terminal& terminal_;
  std::string label_, unit_;
  double total_, begun_;
  Stopwatch clock_;
};

}  // namespace tandem::cli
