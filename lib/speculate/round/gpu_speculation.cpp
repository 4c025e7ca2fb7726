#include "speculate/round/gpu_speculation.h"

#include <algorithm>

#include "base/check.h"
#include "base/clock.h"
#include "speculate/round/simulated_acceptance.h"

namespace tandem::speculate {
namespace {

using decode::Drawn;
using decode::DrawSeq;

DeviceTrees::Bounds bounds_of(const TokenTree& tree, const decode::EngineSpec& target,
                              size_t drafter_bytes, int vocab) {
  return {.max_seqs = target.max_seqs,
          .max_tokens = target.max_tokens,
          .outbox_bytes = drafter_bytes + kv::DeviceStep::outbox_bytes(
                                              target.max_seqs, target.max_seqs * tree.size()),
          .vocab = vocab,
          .gpu = decode::gpu_of(target)};
}

}  // namespace

void GpuSpeculation::plan(const TokenTree& tree, const decode::EngineSpec& target,
                          size_t drafter_bytes, int vocab, MemoryPlan& plan) {
  DeviceTrees::plan(tree, bounds_of(tree, target, drafter_bytes, vocab), target.device, plan);
}

GpuSpeculation::GpuSpeculation(decode::Engine& target, std::unique_ptr<Arena> arena,
                               std::unique_ptr<GpuDrafter> drafter, RoundOptions options)
    : DraftedRounds(target, std::move(drafter), std::move(options)),
      arena_(std::move(arena)),
      exec_{target.queue().get()},
      trees_(drafter_->tree(),
             bounds_of(drafter_->tree(), target.spec(), drafter_->outbox_bytes(),
                       static_cast<int>(target.config().vocab_size)),
             *arena_, exec_) {}

void GpuSpeculation::start(const decode::SamplerSpec& spec) {
  abandon();  // a round whose run was interrupted
  if (!sampler_.is_equal_but_for_seed(spec)) graphs_.clear();
  DraftedRounds::start(spec);
}

GpuSpeculation::~GpuSpeculation() { abandon(); }

void GpuSpeculation::abandon() noexcept {
  if (!std::exchange(is_flying_, false)) return;
  try {
    exec_.queue->wait();
  } catch (const Error&) {
    // The memory that the round works on may go all the same: the GPU has stopped.
  }
}

void GpuSpeculation::fill_inputs(std::span<const DrawSeq> seqs) {
  const DeviceTrees::Arrays& in = trees_.on_host();
  const auto nodes = static_cast<size_t>(trees_.tree().size());
  int n_seen = 0;
  *in.seed = static_cast<uint64_t>(sampler_.seed);
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
  trees_.send_seen(n_seen);
}

void GpuSpeculation::step(std::span<const DrawSeq> seqs) {
  TANDEM_CHECK(!is_flying_, "a round is in flight");
  const Stopwatch watch;
  const int n = static_cast<int>(seqs.size());
  trees_.outbox().clear();
  const int work = drafter_->prepare(seqs, trees_);
  lay_out_target(seqs);
  fill_inputs(seqs);
  is_flying_ = true;  // in part, if launching fails
  launch(n, graphs_[{n, work}]);
  seqs_.clear();
  for (const DrawSeq& s : seqs) seqs_.push_back(s.seq);
  stats_.host_s += watch.seconds();
}

void GpuSpeculation::launch(int n_seqs, Graphs& graphs) {
  const auto run = [&](std::unique_ptr<cuda::Graph>& graph, const std::function<void()>& record) {
    if (!graph) graph = std::make_unique<cuda::Graph>(*exec_.queue, record);
    graph->launch(*exec_.queue);
  };
  const auto draft = [&] {
    trees_.send();
    trees_.mark(DeviceTrees::begun);
    drafter_->draft(n_seqs, trees_);
    trees_.mark(DeviceTrees::drafted);
  };
  const auto score = [&] {
    target_.model().forward_ids(trees_.on_gpu().tokens, step_, target_.cache());
    target_.model().logits(target_.logit_rows().slice(0, step_.n_rows), nullptr);
  };
  const auto finish = [&] {
    trees_.mark(DeviceTrees::scored);
    verify(n_seqs);
    trees_.mark(DeviceTrees::verified);
    trees_.fetch();
  };
  if (target_.spec().n_streamed == 0)
    return run(graphs.round, [&] {
      draft();
      score();
      finish();
    });
  // A graph ends with all its work, copies of weights for the next round too: those go on
  // meanwhile.
  run(graphs.before, draft);
  score();
  run(graphs.after, finish);
}

void GpuSpeculation::lay_out_target(std::span<const DrawSeq> seqs) {
  const int nodes = trees_.tree().size();
  const int64_t n_rows = static_cast<int64_t>(seqs.size()) * nodes;
  slots_.clear();
  for (const DrawSeq& s : seqs) slots_.push_back(s.slot);
  target_.choose_products(n_rows, n_rows);
  kv::Cache& cache = target_.cache();
  const double before = cache.usage(0).bytes();
  if (step_.n_seqs == static_cast<int>(seqs.size())) {
    cache.begin_again({&step_, 1}, slots_, &trees_.outbox());
  } else {
    std::vector<kv::SeqRows> rows;
    for (const int slot : slots_) rows.push_back({slot, nodes, false});
    const std::vector<kv::Tree> shapes(seqs.size(), {trees_.tree().parent});
    step_ = cache.begin({.rows = rows, .trees = shapes, .outbox = &trees_.outbox()});
  }
  bytes_read_ += static_cast<double>(target_.weight_bytes()) + cache.usage(0).bytes() - before;
}

void GpuSpeculation::verify(int n_seqs) {
  const Tensor logits = target_.logit_rows();
  const DeviceTrees::Arrays& at = trees_.on_gpu();
  const DeviceTrees::Shape& shape = trees_.shape();
  const int nodes = trees_.tree().size();
  const ops::VerifyRule rule = rule_of(sampler_.rule, drafter_->accept_by());
  const Tensor draft_logits = drafter_->draft_logits();
  const bool by_residual = rule.accept_by == AcceptBy::residual;
  ops::verify_trees({.path = at.path,
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
                     .numbers = {at.seed, at.sequence, at.position},
                     .n_seqs = n_seqs,
                     .vocab = static_cast<int>(logits.row_size()),
                     .target = rule.target.kept(),
                     .draft = rule.draft.kept(),
                     .accept_by = rule.accept_by,
                     .workspace = trees_.row_workspace()},
                    exec_.stream());
  if (options_.simulate) trees_.accept_forced();
  target_.cache().move_paths(step_, trees_.paths(n_seqs, nodes));
  drafter_->keep(n_seqs, trees_);
}

std::vector<std::vector<Drawn>> GpuSpeculation::collect() {
  if (is_flying_) finish_round();
  return DraftedRounds::collect();
}

void GpuSpeculation::finish_round() {
  is_flying_ = false;
  exec_.queue->wait();
  const Stopwatch watch;
  const DeviceTrees::Arrays& got = trees_.on_host();
  const auto nodes = static_cast<size_t>(trees_.tree().size());
  const auto seconds = [&](DeviceTrees::Moment from, DeviceTrees::Moment to) {
    return 1e-9 * static_cast<double>(got.clock[to] - got.clock[from]);
  };
  stats_.draft_s += seconds(DeviceTrees::begun, DeviceTrees::drafted);
  stats_.target_s += seconds(DeviceTrees::drafted, DeviceTrees::scored);
  stats_.verify_s += seconds(DeviceTrees::scored, DeviceTrees::verified);
  ops::check_valid({got.bonus, seqs_.size()});
  paths_.clear();
  kept_.clear();
  for (size_t b = 0; b < seqs_.size(); ++b) {
    const auto n = static_cast<size_t>(got.n_accepted[b]);
    const int32_t* path = got.path + b * nodes;
    const float* logprobs = got.logprobs + b * nodes;
    std::vector<Drawn>& drawn = ready_.emplace_back();
    drawn.reserve(n + 1);
    for (size_t i = 0; i <= n; ++i)
      drawn.push_back(
          {.id = i == n ? got.bonus[b] : got.tokens[b * nodes + static_cast<size_t>(path[i])],
           .logprob = options_.simulate ? 0.0f : logprobs[i],
           .top = {}});
    paths_.emplace_back(path, n);
    kept_.push_back(static_cast<int>(n) + 1);
    count({seqs_[b], static_cast<int>(nodes) - 1, static_cast<int>(n)});
  }
  target_.cache().commit(step_, kept_);
  drafter_->accept(paths_);
  stats_.host_s += watch.seconds();
}

}  // namespace tandem::speculate
