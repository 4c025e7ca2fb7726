#include "cli/signals.h"

#include <unistd.h>

#include <csignal>
#include <cstring>
#include <utility>

namespace tandem::cli {
namespace {

volatile std::sig_atomic_t received = 0, line_shown = 0, has_answered = 0, ends_answer = 0;

std::function<bool()> agreement;  // of several ranks
bool agreed = false;

void on_signal(int signal) {
  // The limit on CPU time comes again each second: it leaves the step as long as it may have.
  if (received == SIGXCPU && signal == SIGXCPU) return;
  constexpr const char* kClear = "\r\033[J";
  const auto write = [](const char* text) {
    // A handler may only call such functions as write; its failure changes nothing.
    [[maybe_unused]] const ssize_t n = ::write(STDERR_FILENO, text, std::strlen(text));
  };
  if (signal == SIGINT && ends_answer != 0) {
    if (received == 0) received = signal;
    if (line_shown != 0) write(kClear);
    return;
  }
  if (received != 0) ::_exit(128 + signal);
  received = signal;
  has_answered = 1;
  write(line_shown != 0 ? kClear : "\n");
  write("interrupted, finishing the current step (press again to abort)\n");
}

void handle(int signal, void (*handler)(int), int flags) {
  struct sigaction action {};
  action.sa_handler = handler;
  action.sa_flags = flags;
  sigemptyset(&action.sa_mask);
  ::sigaction(signal, &action, nullptr);
}

}  // namespace

void install_signal_handlers() {
  handle(SIGINT, on_signal, SA_RESTART);
  handle(SIGTERM, on_signal, SA_RESTART);
  handle(SIGXCPU, on_signal, SA_RESTART);
  struct sigaction hangup {};
  // nohup has it ignored.
  if (::sigaction(SIGHUP, nullptr, &hangup) != 0 || hangup.sa_handler != SIG_IGN)
    handle(SIGHUP, on_signal, SA_RESTART);
  handle(SIGPIPE, SIG_IGN, 0);
  handle(SIGXFSZ, SIG_IGN, 0);
}

void clear_when_interrupted(bool shown) { line_shown = shown; }

bool answered() {
  const bool has = has_answered != 0;
  has_answered = 0;
  return has;
}

int interrupted() { return received; }

void sigint_ends_answer(bool on) { ends_answer = on; }

bool take_sigint() {
  if (received != SIGINT) return false;
  received = 0;
  return true;
}

bool is_interrupted() { return agreement ? agreed : received != 0; }

void agree_by(std::function<bool()> agree) { agreement = std::move(agree); }

bool agree_interrupted() {
  if (agreement && !agreed) agreed = agreement();
  return is_interrupted();
}

void die_of_broken_pipe() {
  handle(SIGPIPE, SIG_DFL, 0);
  ::raise(SIGPIPE);
  ::_exit(128 + SIGPIPE);  // reached only if the signal is blocked
}

}  // namespace tandem::cli
