#include "ranks/spawn.h"

#include <fcntl.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstring>

#include "base/error.h"
#include "io/file.h"

namespace tandem::ranks {
namespace {

/// Arguments of this process, the program's name first.
std::vector<std::string> own_arguments() {
  const std::string all = io::read_file("/proc/self/cmdline");
  std::vector<std::string> arguments;
  for (size_t at = 0; at < all.size();) {
    const size_t end = std::min(all.find('\0', at), all.size());
    arguments.push_back(all.substr(at, end - at));
    at = end + 1;
  }
  return arguments;
}

/// Between fork and exec: calls that a signal handler may make, and no other.
[[noreturn]] void become(char* const* arguments, int parent) {
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (::getppid() != parent) ::_exit(1);  // it has died already
  ::setpgid(0, 0);                        // a terminal's Ctrl-C goes to rank 0 alone
  const int nothing = ::open("/dev/null", O_RDONLY);
  if (nothing >= 0) ::dup2(nothing, STDIN_FILENO);
  ::execv("/proc/self/exe", arguments);
  ::_exit(1);
}

}  // namespace

Spawned::Spawned(int size, const std::function<std::vector<std::string>(int rank)>& more) {
  std::vector<std::string> own = own_arguments();
  const int parent = ::getpid();
  for (int r = 1; r < size; ++r) {
    std::vector<std::string> arguments = {own.front()};
    for (std::string& word : more(r)) arguments.push_back(std::move(word));
    arguments.insert(arguments.end(), own.begin() + 1, own.end());
    std::vector<char*> pointers;
    for (std::string& word : arguments) pointers.push_back(word.data());
    pointers.push_back(nullptr);
    const int process = ::fork();
    if (process == 0) become(pointers.data(), parent);
    if (process < 0)
      throw make_error(ErrorKind::device, "run.device", "cannot start rank {}: {}", r,
                       std::strerror(errno));
    processes_.push_back(process);
  }
}

Spawned::~Spawned() {
  for (const int process : processes_) {
    int status = 0;
    while (::waitpid(process, &status, 0) < 0 && errno == EINTR) {
    }
  }
}

}  // namespace tandem::ranks
