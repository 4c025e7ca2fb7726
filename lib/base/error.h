#pragma once
#include <fmt/core.h>

#include <string>
#include <utility>

#include "tandem/error.h"

namespace tandem {

int exit_status(ErrorKind kind);

Error formatted_error(ErrorKind kind, std::string where, fmt::string_view text,
                      fmt::format_args args);

/// `throw make_error(ErrorKind::input, path, "tensor '{}' is missing", name).hint("...")`
template <class... Args>
Error make_error(ErrorKind kind, std::string where, fmt::format_string<Args...> text,
                 Args&&... args) {
  return formatted_error(kind, std::move(where), text, fmt::make_format_args(args...));
}

template <class... Args>
Error input_error(std::string where, fmt::format_string<Args...> text, Args&&... args) {
  return formatted_error(ErrorKind::input, std::move(where), text, fmt::make_format_args(args...));
}

template <class... Args>
Error recipe_error(std::string where, fmt::format_string<Args...> text, Args&&... args) {
  return formatted_error(ErrorKind::recipe, std::move(where), text, fmt::make_format_args(args...));
}

template <class... Args>
Error usage_error(std::string where, fmt::format_string<Args...> text, Args&&... args) {
  return formatted_error(ErrorKind::usage, std::move(where), text, fmt::make_format_args(args...));
}

/// Runs `body`; an error of kind input that it throws, and that names no remedy, gets this one.
template <class Body>
auto with_remedy(const char* remedy, const Body& body) {
  try {
    return body();
  } catch (Error& e) {
    if (e.kind() != ErrorKind::input || !e.hint_text().empty()) throw;
    throw std::move(e).hint(remedy);
  }
}

}  // namespace tandem
