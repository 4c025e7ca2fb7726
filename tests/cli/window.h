#pragma once
#include <doctest/doctest.h>
#include <poll.h>
#include <pty.h>
#include <sys/ioctl.h>
#include <sys/wait.h>
#include <termios.h>
#include <unistd.h>

#include <array>
#include <csignal>
#include <cstdlib>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include "cli/probe.h"

/// Programs in a window: a pseudo-terminal that shows what they write and types what a test says.
namespace tandem::testing {

/// The text of a window that breaks long lines, and breaks them anew when it is resized.
class Screen {
 public:
  explicit Screen(size_t columns) : columns_(columns) {}

  void resize(size_t columns) { columns_ = columns; }

  void show(std::string_view bytes) {
    for (const char c : bytes) {
      if (!escape_.empty()) {
        escape_ += c;
        if (std::isalpha(static_cast<unsigned char>(c)) != 0) obey();
      } else if (c == '\033') {
        escape_ = c;
      } else if (c == '\r') {
        at_ -= at_ % columns_;
      } else if (c == '\n') {
        if (++line_ == lines_.size()) lines_.emplace_back();
        at_ = 0;
      } else {
        std::string& line = lines_[line_];
        if (line.size() <= at_) line.resize(at_ + 1, ' ');
        line[at_++] = c;
      }
    }
    if (lines_[line_].size() > columns_) ++n_broken_;
  }

  const std::vector<std::string>& lines() const { return lines_; }
  /// Counts the times that the cursor's line exceeded the window.
  int n_broken() const { return n_broken_; }

 private:
  /// Erases what follows the cursor; colours are not shown.
  void obey() {
    if (escape_ == "\033[J") lines_.resize(line_ + 1);
    if (escape_ == "\033[J" || escape_ == "\033[K")
      lines_[line_].resize(std::min(at_, lines_[line_].size()));
    escape_.clear();
  }

  size_t columns_, line_ = 0, at_ = 0;
  int n_broken_ = 0;
  std::vector<std::string> lines_ = {""};
  std::string escape_;
};

/// Describes keys to type, a resize to make or a signal to send after a text has appeared.
struct Act {
  std::string after;
  std::string type = {};  // keys
  size_t columns = 0;     // of the resized window; 0 = as it is
  int signal = 0;         // 0 = none
};

struct Session {
  Screen screen;
  std::string bytes = {};
  int status = 0;
};

constexpr int kSilentMs = 60'000;

/// Runs a program in a window until it ends; one that writes nothing for kSilentMs is killed.
inline Session run_in_window(size_t columns, const std::string& name,
                             const std::vector<std::string>& flags, std::vector<Act> acts = {}) {
  Session session{Screen(columns)};
  winsize window{
      .ws_row = 24, .ws_col = static_cast<unsigned short>(columns), .ws_xpixel = 0, .ws_ypixel = 0};
  int terminal = -1;
  const pid_t child = ::forkpty(&terminal, nullptr, nullptr, &window);
  if (child < 0) throw std::runtime_error("forkpty failed");
  if (child == 0) {
    // No ^C among the text at a moment of its own, and no text thrown away by it.
    termios settings{};
    ::tcgetattr(STDIN_FILENO, &settings);
    settings.c_lflag = (settings.c_lflag & ~static_cast<tcflag_t>(ECHO)) | NOFLSH;
    ::tcsetattr(STDIN_FILENO, TCSANOW, &settings);
    ::setenv("TERM", "xterm", 1);
    ::setenv("NO_COLOR", "1", 1);
    const std::string path = program(name);
    std::vector<char*> argv = {const_cast<char*>(path.c_str())};
    for (const std::string& flag : flags) argv.push_back(const_cast<char*>(flag.c_str()));
    argv.push_back(nullptr);
    ::execv(path.c_str(), argv.data());
    ::_exit(127);
  }
  std::array<char, 4096> chunk;
  size_t seen = 0;  // by earlier acts
  for (;;) {
    pollfd output{.fd = terminal, .events = POLLIN, .revents = 0};
    if (::poll(&output, 1, kSilentMs) == 0) ::kill(child, SIGKILL);
    const ssize_t n = ::read(terminal, chunk.data(), chunk.size());
    if (n <= 0) break;
    const std::string_view bytes(chunk.data(), static_cast<size_t>(n));
    session.bytes += bytes;
    session.screen.show(bytes);
    while (!acts.empty() && session.bytes.find(acts[0].after, seen) != std::string::npos) {
      const Act act = acts[0];
      acts.erase(acts.begin());
      seen = session.bytes.size();
      if (act.columns > 0) {
        session.screen.resize(act.columns);
        window.ws_col = static_cast<unsigned short>(act.columns);
        ::ioctl(terminal, TIOCSWINSZ, &window);
      }
      if (act.signal != 0) ::kill(child, act.signal);
      if (!act.type.empty()) CHECK(::write(terminal, act.type.data(), act.type.size()) > 0);
    }
  }
  ::close(terminal);
  int status = 0;
  ::waitpid(child, &status, 0);
  session.status = WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
  CHECK(acts.empty());
  return session;
}

constexpr const char* kCtrlC = "\x03";

}  // namespace tandem::testing
