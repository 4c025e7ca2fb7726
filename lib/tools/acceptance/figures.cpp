#include "tools/acceptance/figures.h"

#include <algorithm>
#include <cmath>
#include <numeric>

namespace tandem::tools {
namespace {

using bench::Json;
using eval::Block;

constexpr size_t kBlockTokens = 64;  // of one block of the standard error

void put(Json& json, const eval::Estimate& estimate) {
  json["alpha"] = estimate.mean;
  if (estimate.stderr_) json["alpha_stderr"] = *estimate.stderr_;
}

int64_t positions(const std::vector<Block>& blocks) {
  return std::accumulate(blocks.begin(), blocks.end(), int64_t{0},
                         [](int64_t n, const Block& b) { return n + b.n; });
}

void count(Block& block, double value) {
  block.sum += value;
  ++block.n;
}

/// Where a part of a continuation begins.
double first_of_part(size_t i, int new_tokens) {
  return static_cast<double>(i) * new_tokens / kContinuationParts;
}

double sum_of(const std::vector<double>& values) {
  return std::accumulate(values.begin(), values.end(), 0.0);
}

}  // namespace

void TestedAcceptance::add(const std::vector<double>& overlaps, int answer) {
  for (size_t i = 0; i < overlaps.size(); ++i) {
    if (i % kBlockTokens == 0) blocks_.emplace_back();
    count(blocks_.back(), overlaps[i]);
    count(by_position_[i % by_position_.size()], overlaps[i]);
    count(by_part_[std::min(i * by_part_.size() / static_cast<size_t>(new_tokens_),
                            by_part_.size() - 1)],
          overlaps[i]);
  }
  if (answer == 0) return;
  Block& block = answers_.emplace_back();
  for (size_t i = 0; i < std::min(static_cast<size_t>(answer), overlaps.size()); ++i)
    count(block, overlaps[i]);
}

std::optional<eval::Estimate> TestedAcceptance::answer() const {
  if (answers_.empty()) return std::nullopt;
  return eval::mean_of_blocks(answers_);
}

Json TestedAcceptance::json() const {
  Json j;
  put(j, alpha());
  j["positions"] = positions(blocks_);
  for (const Block& b : by_position_)
    if (b.n > 0) j["by_position"].push_back(b.sum / static_cast<double>(b.n));
  for (size_t i = 0; i < by_part_.size(); ++i)
    if (by_part_[i].n > 0)
      j["by_output"].push_back({{"from_token", first_of_part(i, new_tokens_)},
                                {"alpha", by_part_[i].sum / static_cast<double>(by_part_[i].n)},
                                {"positions", by_part_[i].n}});
  if (const auto estimate = answer()) {
    put(j["answer"], *estimate);
    j["answer"]["positions"] = positions(answers_);
  }
  return j;
}

DraftedAcceptance::DraftedAcceptance(const std::vector<speculate::ChainMeter::Chances>& all)
    : rounds(all.size()) {
  if (all.empty()) return;
  std::vector<double> tested, accepted;
  double drafted = 0;
  for (const auto& round : all) {
    tested.resize(std::max(tested.size(), round.tested.size()));
    accepted.resize(tested.size());
    drafted += static_cast<double>(round.tested.size());
    for (size_t i = 0; i < round.tested.size(); ++i) {
      tested[i] += round.tested[i];
      accepted[i] += round.accepted[i];
    }
  }
  const auto n = static_cast<double>(rounds);
  for (size_t i = 0; i < tested.size(); ++i) {
    if (tested[i] > 0) by_position.push_back(accepted[i] / tested[i]);
    rate_by_position.push_back(accepted[i] / n);
  }
  tokens_per_round = 1 + sum_of(accepted) / n;
  share_accepted = sum_of(accepted) / drafted;
  alpha.mean = sum_of(accepted) / sum_of(tested);
  if (all.size() < 2) return;
  double squares = 0;  // of a ratio of sums over rounds: the residuals' scatter (linearised)
  for (const auto& round : all) {
    const double residual = sum_of(round.accepted) - alpha.mean * sum_of(round.tested);
    squares += residual * residual;
  }
  alpha.stderr_ = std::sqrt(squares * n / (n - 1)) / sum_of(tested);
}

void AcceptanceByOutput::add(int token, const speculate::ChainMeter::Chances& round) {
  Part& part =
      parts_[static_cast<size_t>(token) * parts_.size() / static_cast<size_t>(new_tokens_)];
  part.tested += sum_of(round.tested);
  part.accepted += sum_of(round.accepted);
  ++part.rounds;
}

Json AcceptanceByOutput::json() const {
  Json j = Json::array();
  for (size_t i = 0; i < parts_.size(); ++i)
    if (parts_[i].tested > 0)
      j.push_back({{"from_token", first_of_part(i, new_tokens_)},
                   {"alpha", parts_[i].accepted / parts_[i].tested},
                   {"rounds", parts_[i].rounds}});
  return j;
}

Json DraftedAcceptance::json() const {
  Json j;
  put(j, alpha);
  j.update({{"rounds", rounds},
            {"by_position", by_position},
            {"rate_by_position", rate_by_position},
            {"mean_tokens_per_round", tokens_per_round},
            {"share_accepted", share_accepted}});
  return j;
}

}  // namespace tandem::tools
