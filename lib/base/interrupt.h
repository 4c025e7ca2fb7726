#pragma once
#include <functional>

#include "base/error.h"

namespace tandem {

/// Asked between the pieces of long work; true ends the work.
using Interrupted = std::function<bool()>;

/// errors   kind interrupted, if that was asked for
inline void poll(const Interrupted& interrupted) {
  if (interrupted && interrupted()) throw Error(ErrorKind::interrupted, "", "interrupted");
}

}  // namespace tandem
