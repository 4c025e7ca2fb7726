#include "cli/process.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <csignal>
#include <cstdlib>
#include <ctime>
#include <stdexcept>

#include "base/clock.h"
#include "source_dir.h"

namespace tandem::testing {
namespace {

struct Pipe {
  std::array<int, 2> end{};
  Pipe() {
    if (::pipe2(end.data(), O_CLOEXEC) != 0) throw std::runtime_error("pipe2 failed");
  }
};

[[noreturn]] void become(const std::string& program, const Launch& launch, const Pipe& in,
                         const Pipe& out, const Pipe& err) {
  ::dup2(in.end[0], STDIN_FILENO);
  ::dup2(err.end[1], STDERR_FILENO);
  const int target =
      launch.stdout_path.empty() ? out.end[1] : ::open(launch.stdout_path.c_str(), O_WRONLY);
  ::dup2(target, STDOUT_FILENO);
  for (const auto& [name, value] : launch.variables) ::setenv(name.c_str(), value.c_str(), 1);
  std::vector<char*> argv = {const_cast<char*>(program.c_str())};
  for (const std::string& argument : launch.arguments)
    argv.push_back(const_cast<char*>(argument.c_str()));
  argv.push_back(nullptr);
  ::execvp(program.c_str(), argv.data());
  ::_exit(127);
}

/// Appends what is readable; false at the end of the stream.
bool drain(int fd, std::string& text) {
  std::array<char, 4096> chunk;
  const ssize_t n = ::read(fd, chunk.data(), chunk.size());
  if (n > 0) text.append(chunk.data(), static_cast<size_t>(n));
  return n > 0;
}

/// The CPU time of a running process.
double cpu_seconds_of(pid_t process) {
  clockid_t clock{};
  timespec t{};
  if (::clock_getcpuclockid(process, &clock) == 0) ::clock_gettime(clock, &t);
  return static_cast<double>(t.tv_sec) + 1e-9 * static_cast<double>(t.tv_nsec);
}

}  // namespace

Words::Words(std::string_view line) {
  bool is_open = false, is_quoted = false;
  for (const char c : line) {
    if (!is_quoted && (c == ' ' || c == '\n')) {
      is_open = false;
      continue;
    }
    if (!is_open) emplace_back();
    is_open = true;
    if (c == '\'')
      is_quoted = !is_quoted;
    else
      back() += c;
  }
}

Outcome command(const Words& line, Launch launch) {
  launch.arguments.assign(line.begin() + 1, line.end());
  return run_process(test::program(line.at(0)), launch);
}

Outcome run_process(const std::string& program, const Launch& launch) {
  const Pipe in, out, err;
  Stopwatch clock;
  const pid_t child = ::fork();
  if (child == 0) become(program, launch, in, out, err);
  ::close(in.end[0]);
  ::close(out.end[1]);
  ::close(err.end[1]);
  // Test inputs fit a pipe's buffer, so this cannot block; a child that does not read is no
  // failure.
  std::signal(SIGPIPE, SIG_IGN);
  [[maybe_unused]] const ssize_t n = ::write(in.end[1], launch.input.data(), launch.input.size());
  ::close(in.end[1]);

  Outcome outcome;
  std::array<pollfd, 2> streams = {pollfd{out.end[0], POLLIN, 0}, pollfd{err.end[0], POLLIN, 0}};
  int left_to_send = launch.signal != 0 ? launch.signal_count : 0;
  while (streams[0].fd >= 0 || streams[1].fd >= 0) {
    const bool asks = left_to_send > 0 && (launch.signal_when || launch.signal_at_cpu > 0);
    ::poll(streams.data(), streams.size(), asks ? 2 : -1);
    for (size_t i = 0; i < streams.size(); ++i)
      if (streams[i].fd >= 0 && streams[i].revents != 0 &&
          !drain(streams[i].fd, i == 0 ? outcome.out : outcome.err))
        streams[i].fd = -1;
    while (left_to_send > 0 && outcome.err.find(launch.signal_after) != std::string::npos &&
           cpu_seconds_of(child) >= launch.signal_at_cpu &&
           (!launch.signal_when || launch.signal_when())) {
      outcome.cpu_seconds = -cpu_seconds_of(child);
      ::kill(child, launch.signal);
      clock.restart();
      // A second signal of the same number is lost while the first is pending.
      if (--left_to_send > 0) ::usleep(100000);
    }
  }
  int status = 0;
  rusage used{};
  ::wait4(child, &status, 0, &used);
  outcome.seconds = clock.seconds();
  for (const timeval& t : {used.ru_utime, used.ru_stime})
    outcome.cpu_seconds += static_cast<double>(t.tv_sec) + 1e-6 * static_cast<double>(t.tv_usec);
  outcome.status = WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
  ::close(out.end[0]);
  ::close(err.end[0]);
  return outcome;
}

Outcome run_shell(const std::string& command) {
  return run_process("bash", {.arguments = {"-o", "pipefail", "-c", command}});
}

}  // namespace tandem::testing
