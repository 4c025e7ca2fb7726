#pragma once
#include <string>
#include <string_view>

#include "text/jinja/value.h"

// Jinja's filters, tests and global functions. Argument 0 of a filter or test is its input.
namespace tandem::text::jinja {

using Builtin = Value (*)(Interpreter&, Arguments&);

inline const Value& input(const Arguments& a) { return a.positional.at(0); }

/// Null: there is none of this name.
Builtin find_filter(std::string_view name);
Builtin find_test(std::string_view name);
/// Undefined: there is none of this name.
Value global_function(std::string_view name);

/// "no filter named 'x'", or that it is not supported where Jinja has one.
std::string unknown_name(const char* what, const std::string& name);

}  // namespace tandem::text::jinja
