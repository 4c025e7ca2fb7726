#include "cli/terminal.h"

#include <fmt/ranges.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstdlib>
#include <utility>

#include "base/short_text.h"
#include "cli/signals.h"
#include "io/quote.h"

namespace tandem::cli {
namespace {

constexpr double kRedrawSeconds = 0.1, kPlainLineSeconds = 30.0;
constexpr const char* kNextItem = "\n  ";   // before an item of a list in an error
constexpr const char* kClear = "\r\033[J";  // what stands from the line of the cursor on

bool dumb_terminal() {
  const char* term = std::getenv("TERM");
  return term == nullptr || std::string_view(term) == "dumb";
}

bool no_color() {
  const char* value = std::getenv("NO_COLOR");
  return value != nullptr && *value != '\0';
}

/// Lines of printable text. A line ends at `separator`, whose rest begins the next one.
/// separator    begins with a line break
std::string printable_lines(std::string_view text, std::string_view separator) {
  std::string lines;
  for (;;) {
    const size_t end = text.find(separator);
    lines += io::escape_controls(text.substr(0, end)) + '\n';
    if (end == std::string_view::npos) return lines;
    text.remove_prefix(end + 1);
  }
}

/// A closed stderr must not end a run whose results go elsewhere.
void write_stderr(std::string_view text) {
  while (!text.empty()) {
    const ssize_t n = ::write(STDERR_FILENO, text.data(), text.size());
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return;
    text.remove_prefix(static_cast<size_t>(n));
  }
}

}  // namespace

bool wants_color(Color color, bool is_tty) {
  const bool suits = is_tty && !dumb_terminal() && !no_color();
  return color == Color::always || (color == Color::automatic && suits);
}

std::string painted(std::string_view text, std::string_view code, bool color_on) {
  return color_on ? fmt::format("\033[{}m{}\033[0m", code, text) : std::string(text);
}

size_t window_columns(int fd) {
  winsize window{};
  return ::ioctl(fd, TIOCGWINSZ, &window) == 0 && window.ws_col > 0 ? window.ws_col : 80;
}

std::string fitted(std::vector<std::string> parts, size_t columns) {
  const auto fits = [&] {
    size_t n = 2 * (parts.size() - 1);
    for (const std::string& part : parts) n += part.size();
    return n <= columns;
  };
  const auto drop = [&](auto&& goes) {
    for (size_t i = parts.size(); i-- > 1 && !fits();)
      if (goes(parts[i])) parts.erase(parts.begin() + static_cast<std::ptrdiff_t>(i));
  };
  drop([](const std::string& part) { return part.ends_with("/s"); });
  drop([](const std::string& part) { return !part.starts_with("ETA "); });
  drop([](const std::string&) { return true; });
  std::string line = fmt::format("{}", fmt::join(parts, "  "));
  size_t end = std::min(line.size(), columns);
  while (end > 0 && end < line.size() && (line[end] & 0xC0) == 0x80) --end;  // whole characters
  line.resize(end);
  return line;
}

Terminal::Terminal(std::string tool)
    : tool_(std::move(tool)), is_tty_(::isatty(STDERR_FILENO) == 1) {
  set_color(Color::automatic);
}

Terminal::~Terminal() { clear_progress(); }

void Terminal::set_color(Color color) { color_on_ = wants_color(color, is_tty_); }

void Terminal::print(std::string_view text) {
  clear_progress();
  if (settle_ && settle_()) write_stderr("\n");
  write_stderr(text);
}

void Terminal::note(std::string_view text, int level) {
  if (verbosity_ >= level) print(printable_lines(text, "\n"));  // short help is a note of many
}

void Terminal::note_once(const std::string& text) {
  if (std::ranges::find(notes_, text) != notes_.end()) return;
  notes_.push_back(text);
  note(text);
}

void Terminal::warn(const std::string& raw) {
  const std::string text = io::escape_controls(raw);
  if (std::ranges::find(warnings_, text) != warnings_.end()) return;
  warnings_.push_back(text);
  if (verbosity_ >= 0) print(fmt::format("{}: {} {}\n", tool_, painted("warning:", "33"), text));
}

void Terminal::repeat_warnings() {
  if (verbosity_ < 0) return;
  for (const std::string& text : warnings_)
    print(fmt::format("{}: {} {}\n", tool_, painted("warning:", "33"), text));
}

void Terminal::error(const Error& error) {
  std::string text = fmt::format("{}: {} {}", tool_, painted("error:", "1;31"),
                                 printable_lines(error.what(), kNextItem));
  if (!error.hint_text().empty())
    text += fmt::format("  hint: {}\n", io::escape_controls(error.hint_text()));
  print(text);
}

void Terminal::show_progress(std::vector<std::string> parts, bool force) {
  if (!progress_on_ || verbosity_ < 0) return;
  if (!is_tty_ || dumb_terminal()) {
    if (since_plain_line_.seconds() < kPlainLineSeconds) return;
    since_plain_line_.restart();
    print(fmt::format("{}\n", fmt::join(parts, "  ")));
    return;
  }
  if (!force && since_redraw_.seconds() < kRedrawSeconds) return;
  since_redraw_.restart();
  // The window may have changed since. The cursor waits in the first column: if a narrower window
  // has broken the line, all of its pieces follow the cursor. The last column stays empty.
  const size_t columns = window_columns(STDERR_FILENO);
  write_stderr(fmt::format("\r{}\033[J\r", fitted(std::move(parts), columns - 1)));
  line_shown_ = true;
  clear_when_interrupted(true);
}

void Terminal::clear_progress() {
  if (!std::exchange(line_shown_, false)) return;
  clear_when_interrupted(false);
  write_stderr(kClear);
}

Progress::Progress(Terminal& terminal, std::string label, double total, std::string unit,
                   double begun)
    : terminal_(terminal),
      label_(std::move(label)),
      unit_(std::move(unit)),
      total_(total),
      begun_(begun) {
  terminal_.show_progress({label_ + " ..."}, true);
}

void Progress::update(double done, const std::vector<std::string>& details) {
  const double seconds = clock_.seconds();
  const double rate = seconds > 0 ? (done - begun_) / seconds : 0;
  std::vector<std::string> parts = {
      fmt::format("{} {:3.0f}%", label_, total_ > 0 ? 100 * done / total_ : 0)};
  const bool counts = !unit_.empty();  // else a share is all that there is to say
  if (counts) parts[0] += fmt::format(" {}/{} {}", short_number(done), short_number(total_), unit_);
  parts.insert(parts.end(), details.begin(), details.end());
  if (rate > 0 && counts) parts.push_back(fmt::format("{} {}/s", short_number(rate), unit_));
  if (rate > 0)
    parts.push_back(fmt::format("ETA {}", short_time(std::max(0.0, total_ - done) / rate)));
  terminal_.show_progress(std::move(parts));
}

bool Progress::go_on(double done) {
  update(done);
  return !agree_interrupted();
}

}  // namespace tandem::cli
