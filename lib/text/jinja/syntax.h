#pragma once
#include <cstdint>
#include <memory>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "text/jinja/lexer.h"

// The syntax tree of a template.
namespace tandem::text::jinja {

struct Expression;
using ExpressionPtr = std::unique_ptr<Expression>;

struct CallArguments {
  std::vector<ExpressionPtr> positional;
  std::vector<std::pair<std::string, ExpressionPtr>> named;
  ExpressionPtr rest, named_rest;  // *rest, **named_rest
};

struct Expression {
  enum class Kind : uint8_t {
    constant,    // value
    name,        // text
    list,        // parts
    tuple,       // parts
    dict,        // parts: key, value, ...
    unary,       // text: not + -; parts[0]
    both,        // parts[0] and parts[1]
    either,      // parts[0] or parts[1]
    choice,      // parts: then, condition, else (perhaps null)
    comparison,  // parts[0], then for each of operators one more
    concat,      // parts
    binary,      // text: + - * / // % **
    attribute,   // parts[0].text
    item,        // parts[0][parts[1]]
    slice,       // parts[0][parts[1]:parts[2]:parts[3]], the last three perhaps null
    call,        // parts[0](arguments)
    filter,      // parts[0] | text(arguments); parts[0] is null in a filter block
    test,        // parts[0] is text(arguments)
  };
  Kind kind;
  Position at;
  std::string text = {};
  Value value = {};
  std::vector<ExpressionPtr> parts = {};
  std::vector<std::string> operators = {};
  CallArguments arguments = {};
};

struct Statement;
using Block = std::vector<Statement>;

/// Macros and call blocks.
struct Signature {
  std::vector<std::string> names;
  std::vector<ExpressionPtr> defaults;  // of the last names
  bool uses_varargs = false, uses_kwargs = false, uses_caller = false;
};

struct Statement {
  enum class Kind : uint8_t {
    text,        // name: written as it is
    print,       // value
    condition,   // value; body, otherwise
    loop,        // target in value, if test; body, otherwise, recursive
    assign,      // target = value
    capture,     // target = body through value's filters
    macro,       // name, signature, body
    call,        // value (a call); signature, body
    filter,      // value; body
    with,        // targets = values; body
    generation,  // body
    breaks,
    continues,
  };
  Kind kind;
  Position at;
  std::string name = {};
  ExpressionPtr target = {}, value = {}, test = {};
  std::vector<ExpressionPtr> targets = {}, values = {};
  std::shared_ptr<Signature> signature = {};
  std::shared_ptr<Block> body = {}, otherwise = {};
  bool recursive = false;
};

struct Parsed {
  Block block;
  std::set<std::string, std::less<>> names;  // of variables and functions that it reads
};

/// errors   SyntaxError: what Jinja refuses; a tag, filter or test that is not supported, by name
Parsed parse(std::string_view source);

}  // namespace tandem::text::jinja
