#include "text/jinja/template.h"

#include <fmt/format.h>

#include "base/error.h"
#include "io/quote.h"
#include "text/jinja/interpreter.h"
#include "text/jinja/python_text.h"
#include "text/utf8.h"

namespace tandem::text::jinja {
namespace {

std::string place(const std::string& where, Position at) {
  return fmt::format("{}:{}:{}", where, at.line, at.column);
}

constexpr const char* kRemedy =
    "set another template with chat.template=FILE, or write the full prompt yourself";

/// A message, which may quote any part of a chat, fit for a terminal.
std::string shown(const Failure& e) {
  constexpr size_t kLongest = 500;
  const std::string_view text = e.what();
  const bool cut = n_characters(text) > kLongest;
  return io::escape_controls(cut ? substring(text, 0, kLongest) + "..." : std::string(text));
}

}  // namespace

struct Template::Tree {
  Parsed parsed;
};

Template::~Template() = default;
Template::Template(Template&&) noexcept = default;
Template& Template::operator=(Template&&) noexcept = default;

Template::Template(std::string_view source, std::string where) : where_(std::move(where)) {
  require_utf8(source, where_);
  try {
    tree_ = std::make_unique<Tree>(Tree{parse(source)});
  } catch (const SyntaxError& e) {
    throw input_error(place(where_, e.at), "chat template: {}", shown(e)).hint(kRemedy);
  }
}

bool Template::reads(std::string_view name) const { return tree_->parsed.names.contains(name); }

Rendered Template::render(const std::vector<std::pair<std::string, Value>>& variables,
                          std::string_view date) const {
  Interpreter interpreter(variables, date);
  try {
    interpreter.run(tree_->parsed.block);
  } catch (const Raised& e) {
    throw recipe_error(place(where_, interpreter.position()),
                       "the chat template rejects the chat: {}", shown(e))
        .hint("change the chat as the message says");
  } catch (const Failure& e) {
    throw input_error(place(where_, interpreter.position()), "chat template: {}", shown(e))
        .hint(kRemedy);
  }
  return {interpreter.text(), interpreter.generations(), interpreter.used_date};
}

}  // namespace tandem::text::jinja
