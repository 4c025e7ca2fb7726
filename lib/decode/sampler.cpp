#include "decode/sampler.h"

#include <algorithm>

#include "base/check.h"
#include "base/rng.h"
#include "kernels/sample/row_split.h"
#include "kernels/sample/sample_cuda.h"
#include "kv/device_step.h"
#include "ops/transfers.h"

namespace tandem::decode {
namespace {

constexpr const char* kLast = "sampling/last tokens";
constexpr const char* kRows = "sampling/rows";

/// Alternatives that a draw reports, at most; on the CPU as many as recipes allow.
int max_top_n(bool on_gpu) { return on_gpu ? kMaxTopNCuda : 100; }

/// The number in [0, 1) that a draw takes.
double uniform_of(int64_t seed, const DrawSeq& s) {
  return draw_uniform(static_cast<uint64_t>(seed), static_cast<uint32_t>(s.seq),
                      static_cast<uint32_t>(s.position), DrawPurpose::sample);
}

/// Of the kernels that work on rows of logits.
size_t row_bytes(const SamplerBounds& b, bool on_gpu) {
  return on_gpu ? cuda::row_memory_bytes(b.gpu, b.vocab, b.max_seqs, 1) : 0;
}

/// Results of a draw, one array after the other.
struct Results {
  int32_t* tokens;
  float *logprobs, *lse;
  int32_t* top_ids;
  float* top_logprobs;

  Results(std::byte* base, int max_seqs, int n_top) : tokens(reinterpret_cast<int32_t*>(base)) {
    logprobs = reinterpret_cast<float*>(tokens + max_seqs);
    lse = logprobs + max_seqs;
    top_ids = reinterpret_cast<int32_t*>(lse + max_seqs);
    top_logprobs = reinterpret_cast<float*>(top_ids + max_seqs * n_top);
  }
  static size_t bytes(int max_seqs, int n_top) {
    return static_cast<size_t>(max_seqs * (3 + 2 * n_top)) * sizeof(int32_t);
  }
};

/// A draw's inputs and the arrays of the decode step that goes with it.
size_t parcel_bytes(const SamplerBounds& b) {
  const auto n = static_cast<size_t>(b.max_seqs);
  return kv::DeviceStep::outbox_bytes(b.max_seqs, b.max_seqs) +
         Outbox::aligned(n * sizeof(double)) + Outbox::aligned(n * sizeof(int32_t)) +
         Outbox::aligned((n + 1) * sizeof(int32_t)) +
         Outbox::aligned(n * static_cast<size_t>(b.max_tokens) * sizeof(int32_t));
}

Courier::Spec courier_spec(const SamplerBounds& b, bool on_gpu) {
  return {.name = "sampling",
          .in_bytes = parcel_bytes(b),
          .out_bytes = Results::bytes(b.max_seqs, max_top_n(on_gpu)),
          .turns = 4};  // more than draws in flight and the one being sent
}

}  // namespace

void Sampler::plan(const SamplerBounds& b, Device device, MemoryPlan& plan) {
  const bool on_gpu = device.kind == Device::Kind::cuda;
  Courier::plan(courier_spec(b, on_gpu), device, plan);
  plan.add(kLast, static_cast<size_t>(b.max_seqs) * sizeof(int32_t), device);
  if (const size_t rows = row_bytes(b, on_gpu); rows > 0) plan.add(kRows, rows, device);
}

Sampler::Sampler(const SamplerBounds& bounds, Arena& arena, const Exec& exec)
    : bounds_(bounds),
      exec_(exec),
      courier_(courier_spec(bounds, exec.on_gpu()), arena, exec),
      last_(static_cast<int32_t*>(arena.take(kLast))),
      rows_(row_bytes(bounds, exec.on_gpu()) > 0 ? arena.take(kRows) : nullptr) {}

void Sampler::start(const SamplerSpec& spec) {
  if (exec_.on_gpu() && spec.top_logprobs > kMaxTopNCuda)
    throw recipe_error("output.top_logprobs", "is {}, but a GPU reports at most {} alternatives",
                       spec.top_logprobs, kMaxTopNCuda)
        .hint("lower it, or use --device cpu");
  TANDEM_CHECK(spec.top_logprobs <= max_top_n(exec_.on_gpu()), "{} alternatives exceed the limit",
               spec.top_logprobs);
  spec_ = spec;
  flying_.clear();
}

void Sampler::draw(std::span<const DrawSeq> seqs, const Tensor& logits) {
  TANDEM_CHECK(logits.rows() == static_cast<int64_t>(seqs.size()),
               "found {} rows of logits for {} sequences", logits.rows(), seqs.size());
  const int n = static_cast<int>(seqs.size());
  open();
  send(seqs, n);
  launch(logits);
  finish(n);
}

void Sampler::send(std::span<const DrawSeq> seqs, int places) {
  const size_t n = static_cast<size_t>(places);
  TANDEM_CHECK(seqs.size() <= n && places <= bounds_.max_seqs,
               "{} sequences do not fit {} batch slots", seqs.size(), places);
  const auto uniform = outbox_->take<double>(n);
  const auto slot = outbox_->take<int32_t>(n);
  const auto seen_begin = outbox_->take<int32_t>(n + 1);
  in_ = {places, uniform.device, slot.device, seen_begin.device,
         reinterpret_cast<const int32_t*>(outbox_->device_begin())};
  size_t n_seen = 0;
  for (const DrawSeq& s : seqs) n_seen += spec_.rule.needs_seen() ? s.tokens.size() : 0;
  // Taken last, as their number differs from draw to draw; counted from the parcels' place, which
  // does not.
  const auto seen = outbox_->take<int32_t>(n_seen);
  size_t at = static_cast<size_t>(seen.device - in_.seen);
  seen_begin.host[0] = static_cast<int32_t>(at);
  int32_t* next = seen.host;
  for (size_t i = 0; i < n; ++i) {
    const bool is_padding = i >= seqs.size();
    uniform.host[i] = is_padding ? 0 : uniform_of(spec_.seed, seqs[i]);
    slot.host[i] = is_padding ? -1 : seqs[i].slot;
    if (spec_.rule.needs_seen() && !is_padding) {
      next = std::copy(seqs[i].tokens.begin(), seqs[i].tokens.end(), next);
      at += seqs[i].tokens.size();
    }
    seen_begin.host[i + 1] = static_cast<int32_t>(at);
  }
  courier_.send();
}

const int32_t* Sampler::load_ids() {
  int32_t* ids = Results(courier_.results(), bounds_.max_seqs, n_top()).tokens;
  ops::load_slot_ids({.last = last_, .slot = in_.slot, .ids = ids, .n = in_.places},
                     exec_.stream());
  return ids;
}

void Sampler::launch(const Tensor& logits) {
  const int n = in_.places, vocab = static_cast<int>(logits.row_size());
  const Results out(courier_.results(), bounds_.max_seqs, n_top());
  const ops::SampleRule& rule = spec_.rule;
  ops::sample({.tokens = out.tokens,
               .logits = logits.as<float>(),
               .uniform = in_.uniform,
               .seen = in_.seen,
               .seen_begin = rule.needs_seen() ? in_.seen_begin : nullptr,
               .n_rows = n,
               .vocab = vocab,
               .rule = rule.kept(),
               .workspace = rows_,
               .logprobs = out.logprobs,
               .lse = out.lse},
              exec_.stream());
  if (n_top() > 0)
    ops::top_n({.ids = out.top_ids,
                .logprobs = out.top_logprobs,
                .logits = logits.as<float>(),
                .lse = out.lse,
                .n_rows = n,
                .vocab = vocab,
                .n = n_top(),
                .workspace = rows_},
               exec_.stream());
  ops::store_slot_ids({.last = last_, .slot = in_.slot, .ids = out.tokens, .n = n}, exec_.stream());
}

void Sampler::finish(int n) {
  TANDEM_CHECK(exec_.on_gpu() || flying_.empty(), "cannot draw before the last draw is collected");
  flying_.push_back({courier_.fetch(Results::bytes(bounds_.max_seqs, n_top())), n});
}

std::vector<Drawn> Sampler::collect() {
  TANDEM_CHECK(in_flight() > 0, "no draw is in flight");
  const Flying f = flying_.front();
  flying_.pop_front();
  const Results got(courier_.wait(f.receipt), bounds_.max_seqs, n_top());
  const auto n = static_cast<size_t>(n_top());
  std::vector<Drawn> drawn(static_cast<size_t>(f.n));
  for (size_t i = 0; i < drawn.size(); ++i) {
    drawn[i].id = got.tokens[i];
    drawn[i].logprob = got.logprobs[i];
    for (size_t k = i * n; k < (i + 1) * n; ++k)
      drawn[i].top.emplace_back(got.top_ids[k], got.top_logprobs[k]);
  }
  ops::check_valid({got.tokens, drawn.size()});
  return drawn;
}

}  // namespace tandem::decode
