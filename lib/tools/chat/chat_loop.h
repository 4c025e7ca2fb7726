#pragma once
#include <memory>
#include <optional>
#include <string>

#include "cli/context.h"
#include "cli/line_reader.h"
#include "decode/conversation.h"

namespace tandem::tools {

/// A chat at the terminal: reads messages and commands, streams answers to standard output.
class ChatLoop {
 public:
  /// how      of every answer
  /// system   message that the chat begins with; empty: none
  /// date     that the chat template may write
  ChatLoop(cli::Context& cx, decode::Conversation& conversation, const decode::GenerateSpec& how,
           std::string system, std::string date);

  /// Runs until the end of the input.
  /// errors   kind interrupted: a signal other than SIGINT; kinds memory, device, numeric
  void run();

 private:
  /// A line, and those that continue it; none at the end of the input.
  std::optional<std::string> read();
  void obey(const std::string& line);
  void save(const std::string& path);
  void answer(const std::string& message);
  void report(const decode::Turn& turn);

  cli::Context& cx_;
  decode::Conversation& conversation_;
  const decode::GenerateSpec& how_;
  std::string system_, date_;
  std::unique_ptr<cli::LineReader> lines_;
};

}  // namespace tandem::tools
