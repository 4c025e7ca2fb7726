#pragma once
#include "ops/verification.h"

namespace tandem::speculate {

/// What meters draw children by: the draft's rule; by match they are its best tokens.
inline ops::SampleRule children_rule(const ops::VerifyRule& rule) {
  ops::SampleRule children = rule.draft;
  if (rule.accept_by == AcceptBy::match) children.temperature = 0;
  return children;
}

}  // namespace tandem::speculate
