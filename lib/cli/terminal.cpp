#include "cli/terminal.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstdlib>
#include <utility>

#include "cli/signals.h"
#include "io/quote.h"

namespace tandem::cli {
namespace {

constexpr double kRedrawSeconds = 0.1, kPlainLineSeconds = 30.0;

bool dumb_terminal() {
  const char* term = std::getenv("TERM");
  return term == nullptr || std::string_view(term) == "dumb";
}

bool no_color() {
  const char* value = std::getenv("NO_COLOR");
  return value != nullptr && *value != '\0';
}

}  // namespace

bool wants_color(Color color, bool is_tty) {
  const bool suits = is_tty && !dumb_terminal() && !no_color();
  return color == Color::always || (color == Color::automatic && suits);
}

std::string painted(std::string_view text, std::string_view code, bool color_on) {
  return color_on ? fmt::format("\033[{}m{}\033[0m", code, text) : std::string(text);
}

Terminal::Terminal(std::string tool)
    : tool_(std::move(tool)), is_tty_(::isatty(STDERR_FILENO) == 1) {
  set_color(Color::automatic);
}

Terminal::~Terminal() { clear_progress(); }

void Terminal::set_color(Color color) { color_on_ = wants_color(color, is_tty_); }

void Terminal::print(std::string_view text) {
  clear_progress();
  // A closed stderr must not end a run whose results go elsewhere.
  while (!text.empty()) {
    const ssize_t n = ::write(STDERR_FILENO, text.data(), text.size());
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return;
    text.remove_prefix(static_cast<size_t>(n));
  }
}

void Terminal::note(std::string_view text, int level) {
  if (verbosity_ < level) return;
  std::string lines;  // short help is a note of many
  for (;;) {
    const size_t end = text.find('\n');
    lines += io::escape_controls(text.substr(0, end)) + '\n';
    if (end == std::string_view::npos) break;
    text.remove_prefix(end + 1);
  }
  print(lines);
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
  std::string text = fmt::format("{}: {} {}\n", tool_, painted("error:", "1;31"),
                                 io::escape_controls(error.what()));
  if (!error.hint_text().empty())
    text += fmt::format("  hint: {}\n", io::escape_controls(error.hint_text()));
  print(text);
}

void Terminal::show_progress(const std::string& line, bool force) {
  if (!progress_on_ || verbosity_ < 0) return;
  if (!is_tty_ || dumb_terminal()) {
    if (since_plain_line_.seconds() < kPlainLineSeconds) return;
    since_plain_line_.restart();
    print(line + '\n');
    return;
  }
  if (!force && since_redraw_.seconds() < kRedrawSeconds) return;
  since_redraw_.restart();
  print("\r" + line + "\033[K");
  line_shown_ = true;
}

void Terminal::clear_progress() {
  if (!std::exchange(line_shown_, false)) return;
  print("\r\033[K");
}

std::string short_time(double seconds) {
  const auto s = static_cast<long>(std::ceil(std::min(seconds, 1e8)));
  if (s < 60) return fmt::format("{}s", s);
  if (s < 3600) return fmt::format("{}m{:02}s", s / 60, s % 60);
  return fmt::format("{}h{:02}m", s / 3600, s / 60 % 60);
}

std::string short_number(double x) {
  constexpr const char* kSuffix[] = {"", "k", "M", "G", "T"};
  size_t i = 0;
  while (std::fabs(x) >= 1000 && i + 1 < std::size(kSuffix)) x /= 1000, ++i;
  return i == 0 && x == std::floor(x) ? fmt::format("{:.0f}", x)
                                      : fmt::format("{:.1f}{}", x, kSuffix[i]);
}

Progress::Progress(Terminal& terminal, std::string label, double total, std::string unit,
                   double begun)
    : terminal_(terminal),
      label_(std::move(label)),
      unit_(std::move(unit)),
      total_(total),
      begun_(begun) {
  terminal_.show_progress(label_ + " ...", true);
}

void Progress::update(double done, std::string_view detail) {
  const double seconds = clock_.seconds();
  const double rate = seconds > 0 ? (done - begun_) / seconds : 0;
  std::string line = fmt::format("{} {:3.0f}%", label_, total_ > 0 ? 100 * done / total_ : 0);
  const bool counts = !unit_.empty();  // else a share is all that there is to say
  if (counts) line += fmt::format(" {}/{} {}", short_number(done), short_number(total_), unit_);
  if (!detail.empty()) line += fmt::format("  {}", detail);
  if (rate > 0 && counts) line += fmt::format("  {} {}/s", short_number(rate), unit_);
  if (rate > 0) line += fmt::format("  ETA {}", short_time(std::max(0.0, total_ - done) / rate));
  terminal_.show_progress(line);
}

bool Progress::go_on(double done) {
  update(done);
  return !agree_interrupted();
}

}  // namespace tandem::cli
