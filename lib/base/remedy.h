#pragma once
#include <utility>

#include "base/error.h"

namespace tandem {

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
