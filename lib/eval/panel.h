#pragma once
#include <vector>

#include "decode/engine.h"
#include "eval/settings.h"

namespace tandem::eval {

/// Policies under judgement, and the engines that read by them.
class Panel {
 public:
  /// An engine, and which of the policies its caches are, in their order.
  struct Member {
    decode::Engine* engine = nullptr;
    std::vector<int> policies;
  };

  /// One engine that reads by all of them.
  Panel(decode::Engine& engine);  // NOLINT(google-explicit-constructor): it stands for itself
  /// The first member's first cache is policy 0, full attention, if there are several members.
  explicit Panel(std::vector<Member> members);

  const std::vector<Member>& members() const { return members_; }
  int n_policies() const;
  const model::ModelConfig& config() const { return members_.front().engine->config(); }

 private:
  std::vector<Member> members_;
};

/// Makes these the policies that an engine reads by.
void read_by(decode::EngineSpec& spec, const std::vector<NamedPolicy>& policies);

/// Divides policies among engines. Policies that keep keys where the model runs share an engine and
/// its prompts, full attention (policy 0) first. A policy with keys in host memory or with other
/// weights has a separate engine.
/// result   indices of the policies of each engine
std::vector<std::vector<int>> divide_among_engines(const std::vector<NamedPolicy>& policies);

}  // namespace tandem::eval
