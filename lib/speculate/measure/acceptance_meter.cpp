#include "speculate/measure/acceptance_meter.h"

#include "base/check.h"
#include "speculate/measure/children_rule.h"

namespace tandem::speculate {

AcceptanceMeter::AcceptanceMeter(decode::Engine& target, decode::Engine& draft,
                                 const ops::VerifyRule& rule, int width)
    : logits_(target, draft), rule_(rule), width_(width), sums_(width) {
  TANDEM_CHECK(width > 0 && width <= target.config().vocab_size, "{} children are out of range",
               width);
}

void AcceptanceMeter::add(int seq, int64_t seed, std::span<const int32_t> text, int first) {
  TANDEM_CHECK(first > 0 && static_cast<size_t>(first) <= text.size(),
               "position {} is out of range", first);
  logits_.read(text, first - 1, [&](int row, const Tensor& target, const Tensor& draft) {
    std::vector<ops::ParentNode> parents;
    std::vector<std::span<const int32_t>> seen;
    for (int position = row + 1; position <= row + target.rows(); ++position) {
      parents.push_back({.round = {seed, seq, position}, .node = 0, .n_children = width_});
      seen.push_back(text.first(static_cast<size_t>(position)));
    }
    const bool by_match = rule_.accept_by == AcceptBy::match;
    const std::vector<int32_t> children =
        ops::draw_children(draft, children_rule(rule_), parents, seen);
    const std::vector<double> chances =
        ops::accept_chances(target, by_match ? Tensor{} : draft, rule_, children, width_, seen);
    const auto width = static_cast<size_t>(width_);
    for (size_t r = 0; r < parents.size(); ++r)
      sums_.add(std::span(chances).subspan(r * width, width));
  });
}

}  // namespace tandem::speculate
