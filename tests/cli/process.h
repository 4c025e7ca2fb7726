#pragma once
#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace tandem::testing {

/// The words of a command line. A text is split at spaces and line breaks outside single quotes, a
/// list is taken word by word.
struct Words : std::vector<std::string> {
  Words() = default;
  Words(std::initializer_list<std::string> words) : vector(words) {}
  Words(std::vector<std::string> words) : vector(std::move(words)) {}
  Words(const char* line) : Words(std::string_view(line)) {}
  Words(const std::string& line) : Words(std::string_view(line)) {}
  explicit Words(std::string_view line);

  friend Words operator+(Words words, const Words& more) {
    words.insert(words.end(), more.begin(), more.end());
    return words;
  }
};

struct Outcome {
  std::string out, err;
  int status = 0;            // 128 + n when ended by signal n, as shells report it
  double seconds = 0.0;      // from start to end, or from the signal that was sent to the end
  double cpu_seconds = 0.0;  // of CPU time, over the same
};

struct Launch {
  Words arguments = {};
  std::string input = {};                             // standard input
  std::map<std::string, std::string> variables = {};  // added to the environment
  std::string stdout_path = {};                       // instead of capturing
  int signal = 0;                                     // sent once all three conditions below hold
  int signal_count = 1;
  std::string signal_after = {};  // text on stderr
  double signal_at_cpu = 0;       // seconds of CPU time that the program has used
  std::function<bool()> signal_when = {};
};

/// Runs a program to its end and captures what it wrote.
Outcome run_process(const std::string& program, const Launch& launch);

/// Runs the program of this build that the first word names, with the others.
Outcome command(const Words& line, Launch launch = {});

/// Runs a shell command line.
Outcome run_shell(const std::string& command);

}  // namespace tandem::testing
