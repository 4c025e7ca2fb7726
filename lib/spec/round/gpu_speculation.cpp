#include "spec/round/gpu_speculation.h"

#include <algorithm>

#include "base/check.h"
#include "base/clock.h"
#include "spec/round/simulated_acceptance.h"

namespace tandem::spec {
namespace {

using decode::Drawn;
using decode::DrawSeq;

DeviceTrees::Bounds bounds_of(const decode::EngineSpec& target) {
  return {.max_seqs = target.max_seqs, .max_tokens = target.max_tokens};
}

}  // namespace

void GpuSpeculation::plan(const TokenTree& tree, const decode::EngineSpec& target,
                          MemoryPlan& plan) {
  DeviceTrees::plan(tree, bounds_of(target), target.device, plan);
}

GpuSpeculation::GpuSpeculation(decode::Engine& target, std::unique_ptr<Arena> arena,
                               std::unique_ptr<GpuDrafter> drafter, RoundOptions options)
    : DraftedRounds(target, std::move(drafter), std::move(options)),
      arena_(std::move(arena)),
      exec_{target.queue().get()},
      trees_(drafter_->tree(), bounds_of(target.spec()), *arena_, exec_) {
  for (auto& mark : marks_) mark = std::make_unique<cuda::Event>(true);
}

void GpuSpeculation::start(const decode::SamplerSpec& spec) {
  if (!(sampler_ == spec)) graphs_.clear();
  is_flying_ = false;
  DraftedRounds::start(spec);
}

void GpuSpeculation::fill_inputs(std::span<const DrawSeq> seqs) {
  const DeviceTrees::Arrays& in = trees_.on_host();
  const auto nodes = static_cast<size_t>(trees_.tree().size());
  int n_seen = 0;
  in.seen_begin[0] = 0;
  for (size_t b = 0; b < seqs.size(); ++b) {
    const DrawSeq& s = seqs[b];
    in.sequence[b] = s.seq;
    in.position[b] = s.position;
    in.tokens[b * nodes] = s.tokens.back();
    if (sampler_.rule.needs_seen()) {
      std::copy(s.tokens.begin(), s.tokens.end(), in.seen + n_seen);
      n_seen += static_cast<int>(s.tokens.size());
    }
    in.seen_begin[b + 1] = n_seen;
    if (!options_.simulate) continue;
    const std::vector<int> path =
        simulated_path(trees_.tree(), *options_.simulate, {sampler_.seed, s.seq, s.position});
    in.forced_n[b] = static_cast<int32_t>(path.size());
    std::copy(path.begin(), path.end(), in.forced + b * nodes);
  }
  trees_.send(n_seen);
}

void GpuSpeculation::step(std::span<const DrawSeq> seqs) {
  TANDEM_CHECK(!is_flying_, "a round is in flight");
  const Stopwatch watch;
  const int n = static_cast<int>(seqs.size());
  const int work = drafter_->prepare(seqs, trees_);
  fill_inputs(seqs);
  Graphs& graphs = graphs_[{n, work}];
  const auto run = [&](std::unique_ptr<cuda::Graph>& graph, const std::function<void()>& record) {
    if (!graph) graph = std::make_unique<cuda::Graph>(*exec_.queue, record);
    graph->launch(*exec_.queue);
  };
  marks_[0]->record(*exec_.queue);
  run(graphs.draft, [&] { drafter_->draft(n, trees_); });
  marks_[1]->record(*exec_.queue);
  // The GPU drafts meanwhile.
  lay_out_target(seqs);
  const auto score = [&] {
    target_.model().forward_ids(trees_.on_gpu().tokens, step_, target_.cache());
    (void)target_.model().all_logits();
  };
  // A graph ends with all its work, copies of weights for the next round too: those go on
  // meanwhile.
  if (target_.spec().n_streamed > 0)
    score();
  else
    run(graphs.target, score);
  marks_[2]->record(*exec_.queue);
  run(graphs.verify, [&] { verify(n, step_, target_.model().logit_rows()); });
  marks_[3]->record(*exec_.queue);
  trees_.fetch();
  seqs_.assign(seqs.begin(), seqs.end());
  is_flying_ = true;
  stats_.host_s += watch.seconds();
}

void GpuSpeculation::lay_out_target(std::span<const DrawSeq> seqs) {
  const int nodes = trees_.tree().size();
  const int64_t n_rows = static_cast<int64_t>(seqs.size()) * nodes;
  std::vector<kv::SeqRows> rows;
  std::vector<kv::Tree> shapes;
  for (const DrawSeq& s : seqs) {
    rows.push_back({s.slot, nodes, false});
    shapes.push_back({trees_.tree().parent});
  }
  target_.model().prepare(n_rows);
  target_.model().prepare_logits(n_rows);
  kv::Cache& cache = target_.cache();
  const double before = cache.usage(0).bytes();
  step_ = cache.begin(kv::Phase::extend, rows, shapes);
  bytes_read_ += static_cast<double>(target_.weight_bytes()) + cache.usage(0).bytes() - before;
}

void GpuSpeculation::verify(int n_seqs, const kv::Step& step, const Tensor& logits) {
  const DeviceTrees::Arrays& at = trees_.on_gpu();
  const DeviceTrees::Shape& shape = trees_.shape();
  const int nodes = trees_.tree().size();
  const ops::VerifyRule rule = rule_of(sampler_.rule, drafter_->accept_by());
  const Tensor draft_logits = drafter_->draft_logits();
  const bool by_residual = rule.accept_by == AcceptBy::residual;
  ops::verify_trees({.trees = {.path = at.path,
                               .n_accepted = at.n_accepted,
                               .bonus = at.bonus,
                               .logprobs = at.logprobs,
                               .n_rounded = at.n_rounded,
                               .node_begin = shape.node_begin,
                               .tokens = at.tokens,
                               .first_child = shape.first_child,
                               .n_children = shape.n_children,
                               .target_row = shape.row,
                               .draft_row = by_residual ? drafter_->draft_rows() : nullptr,
                               .target_logits = logits.as<float>(),
                               .draft_logits = by_residual ? draft_logits.as<float>() : nullptr,
                               .seen = rule.target.needs_seen() ? at.seen : nullptr,
                               .seen_begin = at.seen_begin,
                               .coin = nullptr,
                               .uniform = nullptr,
                               .n_seqs = n_seqs,
                               .vocab = static_cast<int>(logits.row_size()),
                               .target = rule.target.kept(),
                               .draft = rule.draft.kept(),
                               .accept_by = rule.accept_by,
                               .workspace = nullptr},
                     .sequence = at.sequence,
                     .position = at.position,
                     .seed = static_cast<uint64_t>(sampler_.seed)},
                    exec_.stream());
  cuda::Queue& queue = *exec_.queue;
  if (options_.simulate) {
    const auto bytes = static_cast<size_t>(n_seqs) * sizeof(int32_t);
    queue.copy_within(at.path, at.forced, bytes * static_cast<size_t>(nodes));
    queue.copy_within(at.n_accepted, at.forced_n, bytes);
  }
  target_.cache().move_paths(step, trees_.paths(n_seqs, nodes));
  drafter_->keep(n_seqs, trees_);
}

std::vector<std::vector<Drawn>> GpuSpeculation::collect() {
  if (is_flying_) finish_round();
  return DraftedRounds::collect();
}

void GpuSpeculation::finish_round() {
  is_flying_ = false;
  trees_.wait();
  const Stopwatch watch;
  stats_.draft_s += 1e-3 * marks_[1]->ms_since(*marks_[0]);
  stats_.target_s += 1e-3 * marks_[2]->ms_since(*marks_[1]);
  stats_.verify_s += 1e-3 * marks_[3]->ms_since(*marks_[2]);
  const DeviceTrees::Arrays& got = trees_.on_host();
  const auto nodes = static_cast<size_t>(trees_.tree().size());
  ops::check_valid({got.bonus, seqs_.size()});
  std::vector<std::span<const int32_t>> paths;
  std::vector<int> kept;
  for (size_t b = 0; b < seqs_.size(); ++b) {
    const auto n = static_cast<size_t>(got.n_accepted[b]);
    const int32_t* path = got.path + b * nodes;
    const float* logprobs = got.logprobs + b * nodes;
    std::vector<Drawn>& drawn = ready_.emplace_back();
    for (size_t i = 0; i < n; ++i)
      drawn.push_back({.id = got.tokens[b * nodes + static_cast<size_t>(path[i])],
                       .logprob = options_.simulate ? 0.0f : logprobs[i],
                       .top = {}});
    drawn.push_back(
        {.id = got.bonus[b], .logprob = options_.simulate ? 0.0f : logprobs[n], .top = {}});
    paths.emplace_back(path, n);
    kept.push_back(static_cast<int>(n) + 1);
    count({seqs_[b].seq, static_cast<int>(nodes) - 1, static_cast<int>(n)});
  }
  target_.cache().commit(step_, kept);
  drafter_->accept(paths);
  stats_.host_s += watch.seconds();
}

}  // namespace tandem::spec
