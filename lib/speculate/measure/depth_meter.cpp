#include "speculate/measure/depth_meter.h"

#include <algorithm>

#include "speculate/draft/pair.h"
#include "speculate/measure/children_rule.h"
#include "speculate/tree/token_tree.h"

namespace tandem::speculate {

using decode::DrawSeq;

DepthMeter::DepthMeter(decode::Engine& target, Reader draft, const ops::VerifyRule& rule, int width,
                       int depths)
    : target_(target),
      draft_(draft),
      rule_(rule),
      width_(width),
      rows_(static_cast<size_t>(depths), ChanceSums(width)) {}

void DepthMeter::start(const decode::SamplerSpec& spec) {
  sampler_ = spec;
  target_.sampler().start(spec);
  results_.clear();
}

void DepthMeter::draw(std::span<const DrawSeq> seqs, const Tensor& logits) {
  target_.sampler().draw(seqs, logits);
  auto& all = results_.emplace_back();
  for (decode::Drawn& drawn : target_.sampler().collect())
    all.emplace_back().push_back(std::move(drawn));
  std::vector<decode::SeqTokens> prompts;
  std::vector<std::vector<int32_t>> known;
  known.reserve(seqs.size());
  for (const DrawSeq& s : seqs) {
    Text& text = texts_[s.slot];
    text = {.draft_slot = draft_.engine->cache().create(draft_.reading.keys), .depth = 0};
    known.push_back(known_ids(s.tokens, draft_.engine->config().vocab_size));
    prompts.push_back({text.draft_slot, known.back(), true});
  }
  draft_.engine->prefill(prompts, {});
}

void DepthMeter::step(std::span<const DrawSeq> seqs) {
  std::vector<decode::SeqTokens> to_target, to_draft;
  std::vector<ops::ParentNode> parents;
  std::vector<std::span<const int32_t>> seen;
  std::vector<std::vector<int32_t>> known;
  known.reserve(seqs.size());
  for (const DrawSeq& s : seqs) {
    to_target.push_back({s.slot, s.tokens.last(1)});
    known.push_back(known_ids(s.tokens.last(1), draft_.engine->config().vocab_size));
    to_draft.push_back({texts_.at(s.slot).draft_slot, known.back()});
    parents.push_back(
        {.round = {sampler_.seed, s.seq, s.position}, .node = 0, .n_children = width_});
    seen.push_back(s.tokens);
  }
  const Tensor target = target_.extend(to_target);
  const Tensor draft =
      in_vocabulary(draft_.engine->extend(to_draft), target_.config().vocab_size, wide_logits_);
  const bool by_match = rule_.accept_by == AcceptBy::match;
  const Tensor proposal = by_match ? Tensor{} : draft;
  const std::vector<int32_t> children =
      ops::draw_children(draft, children_rule(rule_), parents, seen);
  const std::vector<double> chances =
      ops::accept_chances(target, proposal, rule_, children, width_, seen);

  // A root with these children, whose own logits nobody needs: the token drawn after an accepted
  // one is left out, and the child itself is the next root.
  const auto nodes = static_cast<size_t>(width_) + 1, width = static_cast<size_t>(width_);
  const TokenTree star = star_tree(width_);
  std::vector<std::vector<int32_t>> tokens, target_rows, draft_rows;
  std::vector<ops::DraftTree> trees;
  for (size_t b = 0; b < seqs.size(); ++b) {
    std::vector<int32_t>& t = tokens.emplace_back(1, seqs[b].tokens.back());
    t.insert(t.end(), children.begin() + static_cast<long>(b * width),
             children.begin() + static_cast<long>((b + 1) * width));
    target_rows.emplace_back(nodes, static_cast<int32_t>(b));
    draft_rows.emplace_back(by_match ? 0 : nodes, static_cast<int32_t>(b));
  }
  for (size_t b = 0; b < seqs.size(); ++b)
    trees.push_back({.round = parents[b].round,
                     .tokens = tokens[b],
                     .first_child = star.first_child,
                     .n_children = star.n_children,
                     .target_row = target_rows[b],
                     .draft_row = draft_rows[b],
                     .seen = seen[b]});
  const std::vector<ops::Verified> verdicts = ops::verify_trees(target, proposal, rule_, trees);
  auto& all = results_.emplace_back();
  for (size_t b = 0; b < seqs.size(); ++b) {
    Text& text = texts_.at(seqs[b].slot);
    rows_[text.depth].add(std::span(chances).subspan(b * width, width));
    const bool accepted = !verdicts[b].path.empty();
    text.depth = accepted && text.depth + 1 < rows_.size() ? text.depth + 1 : 0;
    const int32_t id =
        accepted ? tokens[b][static_cast<size_t>(verdicts[b].path[0])] : verdicts[b].bonus;
    all.emplace_back().push_back({.id = id, .logprob = 0, .top = {}});
  }
}

std::vector<std::vector<decode::Drawn>> DepthMeter::collect() {
  auto oldest = std::move(results_.front());
  results_.erase(results_.begin());
  return oldest;
}

void DepthMeter::forget(int slot) {
  const auto it = texts_.find(slot);
  if (it == texts_.end()) return;
  draft_.engine->cache().release(it->second.draft_slot);
  texts_.erase(it);
}

}  // namespace tandem::speculate
