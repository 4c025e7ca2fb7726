#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "text/jinja/value.h"

namespace tandem::text::jinja {

/// A place in a template, counted from 1; columns count characters.
struct Position {
  int line = 1, column = 1;
};

/// A template that does not parse. The caller adds the name of its file.
struct SyntaxError : Failure {
  SyntaxError(Position where, const std::string& message) : Failure(message), at(where) {}
  Position at;
};

enum class TokenKind : uint8_t {
  data,  // text outside tags
  print_begin,
  print_end,
  block_begin,
  block_end,
  name,
  string,
  number,
  op,
  end,
};

struct Token {
  TokenKind kind;
  std::string text;  // of data, name, string (without escapes) or operator
  Value number;
  Position at;
};

/// The tokens of a template under trim_blocks and lstrip_blocks, without the line break at its end,
/// as transformers configures Jinja. Line breaks become \n; comments and raw tags are gone.
/// errors   SyntaxError
std::vector<Token> tokenize(std::string_view source);

}  // namespace tandem::text::jinja
