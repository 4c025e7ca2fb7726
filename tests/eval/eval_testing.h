#pragma once
#include <algorithm>
#include <filesystem>
#include <memory>
#include <string>

#include "decode/engine.h"
#include "eval/protocols.h"
#include "eval/tasks.h"
#include "source_dir.h"

/// Helpers of the tests of eval: the small models of the repository.
namespace eval_testing {

using tandem::decode::Engine;
using tandem::eval::Ids;
using tandem::eval::NamedPolicy;

using tandem::test::program;
using tandem::test::source_dir;
inline std::string model_path(const std::string& name) {
  return (source_dir() / "recipes/models" / name).string();
}

inline const tandem::text::Tokenizer& tokenizer() {
  static const auto loaded = tandem::text::load_tokenizer(model_path("tiny-2m"));
  return *loaded;
}

inline std::unique_ptr<Engine> make_engine(const std::string& model,
                                           const tandem::decode::EngineSpec& spec) {
  return std::make_unique<Engine>(tandem::decode::open_model(model_path(model), 0), spec);
}

inline tandem::eval::NamedPolicy full() { return {"full", {}}; }
inline tandem::eval::NamedPolicy streaming(int sinks, int recent) {
  tandem::eval::NamedPolicy policy{"streaming", {}};
  policy.cache.kind = tandem::recipe::CacheKind::streaming;
  policy.cache.sinks.value = sinks;
  policy.cache.recent.value = recent;
  return policy;
}

inline tandem::eval::NamedPolicy sparse(const std::string& kind,
                                        std::vector<int> dense_layers = {0}) {
  tandem::eval::NamedPolicy policy{kind, {}};
  const auto names = enum_names(policy.cache.kind);
  policy.cache.kind =
      static_cast<tandem::recipe::CacheKind>(std::ranges::find(names, kind) - names.begin());
  policy.cache.dense_layers = std::move(dense_layers);
  return policy;
}

inline size_t count(const std::string& text, const std::string& part) {
  size_t n = 0;
  for (size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++n;
  return n;
}

}  // namespace eval_testing
