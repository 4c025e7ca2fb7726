#include "eval/panel.h"

#include <numeric>

#include "base/check.h"

namespace tandem::eval {

Panel::Panel(decode::Engine& engine)
    : members_{{&engine, std::vector<int>(engine.spec().caches.size())}} {
  std::vector<int>& policies = members_.front().policies;
  std::iota(policies.begin(), policies.end(), 0);
}

Panel::Panel(std::vector<Member> members) : members_(std::move(members)) {
  TANDEM_CHECK(!members_.empty(), "expected at least one engine");
  for (const Member& member : members_)
    TANDEM_CHECK(member.policies.size() == member.engine->spec().caches.size(),
                 "an engine differs from its member in the number of policies");
}

int Panel::n_policies() const {
  size_t n = 0;
  for (const Member& member : members_) n += member.policies.size();
  return static_cast<int>(n);
}

void read_by(decode::EngineSpec& spec, const std::vector<NamedPolicy>& policies) {
  for (const NamedPolicy& policy : policies) {
    spec.caches.push_back(policy.cache);
    if (policy.sparse.any()) spec.sparse.push_back(policy.sparse);
    spec.channels.push_back(policy.sparse.any() ? static_cast<int>(spec.sparse.size()) : 0);
  }
}

std::vector<std::vector<int>> divide_among_engines(const std::vector<NamedPolicy>& policies) {
  std::vector<std::vector<int>> parts(1);
  for (size_t i = 0; i < policies.size(); ++i) {
    const int policy = static_cast<int>(i);
    if (policies[i].cache.is_hosted() || policies[i].cache.is_quantized() ||
        policies[i].has_weights())
      parts.push_back({policy});
    else
      parts.front().push_back(policy);
  }
  return parts;
}

}  // namespace tandem::eval
