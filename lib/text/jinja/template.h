#pragma once
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "text/jinja/value.h"

namespace tandem::text::jinja {

struct Rendered {
  std::string text;
  std::vector<std::pair<size_t, size_t>> generations;  // bytes of {% generation %} blocks
  bool used_date = false;                              // strftime_now was called
};

/// A Jinja template with the semantics that transformers gives chat templates: an immutable
/// sandbox with trim_blocks, lstrip_blocks, loop controls, its own tojson, raise_exception,
/// strftime_now and the generation tag. It reads no file and no clock.
class Template {
 public:
  /// where    names the source in messages
  /// errors   kind input at where:line:column: a syntax error, or an unknown tag, filter or test
  Template(std::string_view source, std::string where);
  ~Template();
  Template(Template&&) noexcept;
  Template& operator=(Template&&) noexcept;

  /// True if it reads a variable of this name, wherever it is set.
  bool reads(std::string_view name) const;

  /// Thread-safe.
  /// date     what strftime_now writes, YYYY-MM-DD
  /// errors   kind recipe at where:line:column: the message of raise_exception; kind input there:
  ///          what Jinja refuses, something unsupported, or no end within the bounds of time, depth
  ///          and memory
  Rendered render(const std::vector<std::pair<std::string, Value>>& variables,
                  std::string_view date) const;

 private:
  struct Tree;
  std::unique_ptr<Tree> tree_;
  std::string where_;
};

}  // namespace tandem::text::jinja
