#pragma once
#include <cstdint>
#include <string>

#include "text/utf8.h"

namespace tandem::text {

class Tokenizer;

struct StreamerOptions {
  bool skip_special = true;
};

/// Turns ids into text while they are generated. Pieces hold whole characters only, and joined they
/// equal Tokenizer::decode of all ids.
class Streamer {
 public:
  explicit Streamer(const Tokenizer& tokenizer, StreamerOptions options = {});

  /// The characters that are complete with this token; often empty for part of a character.
  std::string push(int32_t id);
  /// The end: U+FFFD if a character stayed unfinished. The next push begins a new text.
  std::string flush();

  /// The same, appended to `out`.
  void push(int32_t id, std::string& out);
  void flush(std::string& out);

 private:
  const Tokenizer* tokenizer_;
  StreamerOptions options_;
  Utf8Assembler assembler_;
  bool drop_space_;  // the next byte, if a space, is the one that encoding put in front
};

}  // namespace tandem::text
