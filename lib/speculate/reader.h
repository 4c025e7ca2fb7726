#pragma once
#include "decode/engine.h"

namespace tandem::speculate {

/// A model, and which keys and channels its forwards read.
struct Reader {
  decode::Engine* engine;
  kv::Reading reading = {};

  Reader(decode::Engine& e, kv::Reading r = {})
      : engine(&e), reading(r) {}  // NOLINT: an engine
                                   // reads, first of all

  /// Keys and values that it has read.
  double kv_bytes() const { return engine->cache().usage(reading.keys).bytes(); }
};

}  // namespace tandem::speculate
